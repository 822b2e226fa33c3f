"""Files of fairseq: checkpoints by torch's restricted loader, or arrays and arguments without torch.

Nothing in a checkpoint is executed. Torch's weights-only loader builds tensors and plain values; beyond those only the
names listed here are accepted, and each of them except argparse.Namespace becomes an inert placeholder.
"""

import argparse
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from convs2s_jax.core.errors import UserError


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
"""Names, beside argparse.Namespace, that a checkpoint may hold: meters, configurations and numbers of fairseq."""


def read(path: Path) -> dict[str, Any]:
    """The content of a checkpoint: nested dictionaries and lists, tensors as float32 or integer arrays.

    Args:
      path: FILE.pt of fairseq, or an .npz of its state dict with fairseq's arguments in `config.json` beside it, which
        needs no torch.

    Raises:
      UserError: no such file, not a checkpoint, one that would execute code, or torch is not installed.
    """
    if not path.is_file():
        raise UserError(f"--checkpoint={path}: there is no such file")
    return _read_arrays(path) if path.suffix == ".npz" else _read_torch(path)


def write(content: dict[str, Any], path: Path) -> None:
    """Write a checkpoint: arrays become tensors, the mapping under 'args' an argparse.Namespace."""
    torch = _torch(path)

    def convert(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return torch.from_numpy(np.array(value))
        if isinstance(value, dict):
            return type(value)((key, convert(item)) for key, item in value.items())
        return [convert(item) for item in value] if isinstance(value, list) else value

    buffer = io.BytesIO()  # on a full disk torch would not raise OSError
    torch.save(convert(content) | {"args": argparse.Namespace(**content["args"])}, buffer)
    path.write_bytes(buffer.getbuffer())


def _read_arrays(path: Path) -> dict[str, Any]:
    arguments = path.with_name("config.json")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            model = {name: arrays[name] for name in arrays.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(f"--checkpoint={path} is not an .npz file of plain arrays: {_first(error)}") from error
    try:
        return {"args": dict(json.loads(arguments.read_text(encoding="utf-8"))), "model": model}
    except FileNotFoundError as error:
        raise UserError(f"{arguments} is missing: it holds fairseq's arguments for {path.name}") from error
    except (ValueError, TypeError) as error:
        raise UserError(f"{arguments} is not a JSON object: {_first(error)}") from error


def _read_torch(path: Path) -> dict[str, Any]:
    torch = _torch(path)
    allowed = [argparse.Namespace, *((Inert, name) for name in INERT)]
    try:
        with torch.serialization.safe_globals(allowed):
            content = torch.load(io.BytesIO(path.read_bytes()), map_location="cpu", weights_only=True)
        content = _plain(content)
    except Exception as error:  # a file of unknown origin may cause any error
        asked = _asked_for(error)
        if asked:
            raise UserError(
                f"--checkpoint={path} asks for {asked}: refused, nothing in it was executed. A checkpoint of fairseq "
                "holds tensors, numbers and its arguments; use one from fairseq-train"
            ) from error
        raise UserError(f"--checkpoint={path} is not a checkpoint that torch can read: {_first(error)}") from error
    if not isinstance(content, dict) or not isinstance(content.get("model"), Mapping):
        held = ", ".join(map(str, content)) if isinstance(content, dict) else type(content).__name__
        raise UserError(f"--checkpoint={path} holds no 'model': it is not a checkpoint of fairseq (it holds: {held})")
    return content


def _torch(path: Path) -> Any:
    try:
        import torch
    except ImportError as error:
        raise UserError(
            f"{path}: checkpoints of fairseq need PyTorch, which is not installed: pip install 'convs2s_jax[fairseq]'"
        ) from error
    return torch


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
    """The content of omegaconf's containers and nodes, the name of enum members, None for others."""
    state = value.state
    if isinstance(state, Mapping):
        inner = state.get("_content", state.get("_val"))
        return _plain(inner)
    return value.args[0] if len(value.args) == 1 and isinstance(value.args[0], str) else None


def _asked_for(error: Exception) -> str:
    """The name of the disallowed global that a pickle refers to."""
    words = str(error).replace("`", " ").split()
    for mark in ("GLOBAL", "class", "function"):
        if mark in words[:-1]:
            return words[words.index(mark) + 1]
    return ""


def _first(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if lines[0].startswith("Weights only load failed"):  # the rest is torch's advice, which would execute the file
        return "it is damaged, cut off, or of another kind"
    return lines[0][:200]
