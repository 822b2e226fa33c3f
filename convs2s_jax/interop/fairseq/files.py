"""Read fairseq checkpoints with torch's weights-only loader, or arrays and arguments without torch.

Nothing in a checkpoint is executed. Checksums are verified first. Then `pickles.inspect` refuses content that would not
fit into memory, and only then does torch's weights-only loader build tensors and plain values. Beyond those, only the
names listed here are accepted, and each of them except argparse.Namespace becomes an inert placeholder.
"""

import argparse
import io
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from convs2s_jax.core.errors import UserError, first_line, shown
from convs2s_jax.core.files import read_json
from convs2s_jax.interop.fairseq import archives, pickles


class Inert:
    """A placeholder for an object of fairseq or omegaconf, without behaviour.

    Attributes:
      args: the arguments it was created with.
      state: the state it was restored with, or None.
    """

    args: tuple[Any, ...] = ()
    state: Any = None

    def __init__(self, *args: Any) -> None:
        self.args = args

    def __setstate__(self, state: Any) -> None:
        self.state = state


_CONFIGS = "FairseqConfig CommonConfig CommonEvalConfig DatasetConfig OptimizationConfig CheckpointConfig EMAConfig"
_MORE_CONFIGS = "DistributedTrainingConfig FairseqBMUFConfig GenerationConfig EvalLMConfig InteractiveConfig"
_CHOICES = "DDP_BACKEND DDP_COMM_HOOK DATASET_IMPL GENERATION_CONSTRAINTS GENERATION_DECODING_FORMAT LOG_FORMAT"
_MORE_CHOICES = "PIPELINE_CHECKPOINT PRINT_ALIGNMENT ZERO_SHARDING CLIP_GRAD_NORM"
INERT = (
    *(f"fairseq.meters.{name}" for name in ("AverageMeter", "TimeMeter", "StopwatchMeter")),
    *(f"fairseq.dataclass.configs.{name}" for name in f"{_CONFIGS} {_MORE_CONFIGS}".split()),
    *(f"fairseq.dataclass.constants.{name}_CHOICES" for name in f"{_CHOICES} {_MORE_CHOICES}".split()),
    "fairseq.tasks.translation.TranslationConfig",
    "fairseq.optim.nag.FairseqNAGConfig",
    "fairseq.optim.adam.FairseqAdamConfig",
    "fairseq.optim.lr_scheduler.fixed_schedule.FixedLRScheduleConfig",
    "fairseq.optim.lr_scheduler.reduce_lr_on_plateau.ReduceLROnPlateauLRScheduleConfig",
    "fairseq.optim.lr_scheduler.inverse_square_root_schedule.InverseSquareRootLRScheduleConfig",
    "fairseq.optim.lr_scheduler.cosine_lr_scheduler.CosineLRScheduleConfig",
    "fairseq.criterions.cross_entropy.CrossEntropyCriterionConfig",
    "fairseq.criterions.label_smoothed_cross_entropy.LabelSmoothedCrossEntropyCriterionConfig",
    "fairseq.scoring.bleu.BleuConfig",
    "omegaconf.dictconfig.DictConfig",
    "omegaconf.listconfig.ListConfig",
    *(f"omegaconf.base.{name}" for name in ("Metadata", "ContainerMetadata")),
    *(f"omegaconf.nodes.{kind}Node" for kind in ("Any", "String", "Integer", "Float", "Boolean", "Enum")),
    "typing.Any",
    "typing.Union",
    "collections.defaultdict",
    *(f"builtins.{name}" for name in ("dict", "list", "tuple", "int", "float", "bool", "str", "object")),
    *(f"numpy.{name}" for name in ("dtype", "core.multiarray.scalar", "_core.multiarray.scalar")),
)
"""Names, besides argparse.Namespace, that a checkpoint may refer to: fairseq's meters, configurations and numbers."""


ARGUMENTS = "config.json"
"""Name of the file with fairseq's arguments, next to an .npz file."""
_NAMES = frozenset({*INERT, "argparse.Namespace", "collections.OrderedDict"})
_MOST_PICKLE, _MOST_JSON = 2**26, 2**24
_OLDEST_TORCH = (2, 6)


def read(path: Path) -> dict[str, Any]:
    """Read a checkpoint as nested dictionaries and lists, with tensors as float32 or integer arrays.

    Args:
      path: a fairseq .pt file, or an .npz file of its state dict with fairseq's arguments in `config.json` next to it.
        The latter does not require torch.

    Raises:
      UserError: the file does not exist, is damaged or not a checkpoint, would execute code or claims more than it
        contains, or no torch version that loads safely is installed.
    """
    if not path.is_file():
        odd = "is not a file; specify a .pt or .npz file" if path.exists() else "does not exist"
        raise UserError(f"--checkpoint={path} {odd}")
    try:
        return _read_arrays(path) if path.suffix == ".npz" else _read_torch(path)
    except OSError as error:
        raise UserError(f"--checkpoint={path} cannot be read: {error.strerror}") from error


def unchecked(path: Path) -> str:
    """The reason that damage to a readable file would go unnoticed, or "" if checksums detect it."""
    if path.suffix == ".npz":
        return f"the arguments next to it, {path.with_name(ARGUMENTS)}, have no checksum"
    if not archives.is_archive(path):
        return "it is in the format used before PyTorch 1.6, which has no checksums"
    with archives.opened(path) as archive:
        return "" if archives.has_checksums(archive) else "it was written without checksums"


def write(content: dict[str, Any], path: Path) -> None:
    """Write a checkpoint and verify it. Arrays become tensors, the mapping under 'args' an argparse.Namespace.

    Raises:
      UserError: what is read back differs from what was written.
    """
    torch = imported_torch(f"--output={path}")

    def convert(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return torch.from_numpy(np.array(value))
        if isinstance(value, dict):
            return type(value)((key, convert(item)) for key, item in value.items())
        return [convert(item) for item in value] if isinstance(value, list) else value

    buffer = io.BytesIO()  # on a full disk torch would not raise OSError
    torch.serialization.set_crc32_options(True)
    torch.save(convert(content) | {"args": argparse.Namespace(**content["args"])}, buffer)
    path.write_bytes(buffer.getbuffer())
    found = read(path)["model"]
    if unchecked(path) or not all(np.array_equal(found[name], value) for name, value in content["model"].items()):
        raise UserError(f"--output: {path.name} differs from what was written when read back; use another disk")


def _read_arrays(path: Path) -> dict[str, Any]:
    arguments = path.with_name(ARGUMENTS)
    try:
        with archives.opened(path) as archive:
            model = {name: _single(value) for name, value in archives.arrays(archive).items()}
    except archives.UnusableError as error:
        raise UserError(f"--checkpoint={path} is not an .npz file of plain arrays: it {error}") from error
    if not arguments.exists():
        raise UserError(f"{arguments} is missing; it must contain fairseq's arguments for {path.name}")
    args = read_json(arguments, remedy=f"it must contain fairseq's arguments for {path.name}", most=_MOST_JSON)
    if not isinstance(args, dict):
        raise UserError(
            f"{arguments} is not a JSON object; it must contain fairseq's arguments by name, for {path.name}"
        )
    return {"args": args, "model": model}


def _single(value: np.ndarray) -> np.ndarray:
    """Convert to single precision. Values that are too large become infinite and are refused later, by name."""
    with np.errstate(over="ignore"):
        return value.astype(np.float32) if value.dtype.kind == "f" else value


def _read_torch(path: Path) -> dict[str, Any]:
    torch = imported_torch(f"--checkpoint={path}")
    _check_version(path, torch.__version__)
    allowed = [argparse.Namespace, *((Inert, name) for name in INERT)]
    try:
        stream = _inspected_archive(path) if archives.is_archive(path) else _inspected_older(path)
        with torch.serialization.safe_globals(allowed):
            content = torch.load(stream, map_location="cpu", weights_only=True)
        content = _plain(content)
    except pickles.AsksForError as error:
        raise UserError(
            f"--checkpoint={path} refers to {shown(str(error))[1:-1]} and was refused; nothing in it was executed. A "
            "fairseq checkpoint contains only tensors, numbers and its arguments; use one from fairseq-train"
        ) from error
    except (archives.UnusableError, pickles.RefusedError) as error:
        raise UserError(f"--checkpoint={path} is not a checkpoint that torch can read: it {error}") from error
    except OSError:
        raise
    except Exception as error:  # a file of unknown origin may cause any error
        raise UserError(f"--checkpoint={path} is not a checkpoint that torch can read: {_first(error)}") from error
    if not isinstance(content, dict) or not isinstance(content.get("model"), Mapping):
        held = (
            ", ".join(shown(name).strip("'") for name in list(content)[:20])
            if isinstance(content, dict)
            else type(content).__name__
        )
        raise UserError(
            f"--checkpoint={path} contains no 'model', so it is not a fairseq checkpoint (it contains: {held})"
        )
    return content


def _inspected_archive(path: Path) -> io.BytesIO:
    """A copy of torch's archive after verifying the checksums and that the pickle claims no more than the file has."""
    with archives.opened(path) as archive:
        content = archives.copied(archive)
    with zipfile.ZipFile(content) as copy:
        sizes = {part.filename: part.file_size for part in copy.infolist()}
        name = next((name for name in sizes if name.count("/") == 1 and name.endswith("/data.pkl")), "")
        if not name or sizes[name] > _MOST_PICKLE:
            raise archives.UnusableError(f"has no entry data.pkl of at most {_MOST_PICKLE} bytes")
        folder = name.removesuffix("data.pkl")
        pickles.inspect(io.BytesIO(copy.read(name)), _NAMES, lambda key, _claimed: sizes.get(f"{folder}data/{key}", 0))
    content.seek(0)
    return content


def _inspected_older(path: Path) -> io.BytesIO:
    """A file in torch's older format: five pickles (the third is the checkpoint), then the data of the storages."""
    content = io.BytesIO(path.read_bytes())
    length = len(content.getbuffer())
    claimed = 0
    for _ in range(5):
        storages = pickles.inspect(content, _NAMES, lambda _key, claimed: max(claimed, length))
        claimed += sum(storages.values())
    if claimed > length:
        raise pickles.RefusedError(f"has storages that claim {claimed} bytes, but is only {length} bytes long")
    content.seek(0)
    return content


def imported_torch(where: str) -> Any:
    """Import torch. `where` is the flag that needs it, for the UserError if it is not installed."""
    try:
        import torch
    except ImportError as error:
        raise UserError(
            f"{where}: fairseq checkpoints require PyTorch, which is not installed; run pip install '.[fairseq]'"
        ) from error
    return torch


def _check_version(path: Path, version: str) -> None:
    """Refuse torch before 2.6, whose weights-only loader could execute code from a file (CVE-2025-32434)."""
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < _OLDEST_TORCH:
        raise UserError(
            f"--checkpoint={path}: PyTorch {version} is installed, whose weights-only loader can be made to execute "
            "code from a file; install 2.6 or later with pip install '.[fairseq]'"
        )


def _plain(value: Any) -> Any:
    """Convert what torch read to dictionaries, lists, arrays and numbers."""
    if isinstance(value, argparse.Namespace):
        return _plain(vars(value))
    if isinstance(value, Inert):
        return _plain_inert(value)
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "detach"):
        tensor = value.detach()
        return (tensor.float() if tensor.is_floating_point() else tensor).numpy()
    return value


def _plain_inert(value: Inert) -> Any:
    """The content of omegaconf's containers and nodes, the name of an enum member, or None for anything else."""
    state = value.state
    if isinstance(state, Mapping):
        inner = state.get("_content", state.get("_val"))
        return _plain(inner)
    return value.args[0] if len(value.args) == 1 and isinstance(value.args[0], str) else None


def _first(error: BaseException) -> str:
    line = first_line(error)
    if line.startswith("Weights only load failed"):  # the rest is torch's advice, which could execute the file
        return "it is damaged, truncated, or not a checkpoint"
    return line
