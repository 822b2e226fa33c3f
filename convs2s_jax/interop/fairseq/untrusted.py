"""Read a checkpoint of unknown origin. `checkpoint.read` runs this file as a process with little memory and time.

torch's weights-only loader executes nothing, but a small file can claim terabytes, or lists that never end. The limits
of the operating system stop all of them. What was read is handed back as plain arrays and JSON. This file needs numpy,
and torch for .pt files; it must not import this package.
"""

import argparse
import io
import json
import re
import resource
import sys
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

ARRAYS, CONTENT = "arrays.npz", "content.json"
MOST_VALUES, DEEPEST = 1_000_000, 50
_OLDEST_TORCH = (2, 6)
_KEPT = ("args", "cfg", "model", "optimizer_history", "extra_state", "last_optimizer_state")
_ARCHIVE = b"PK\x03\x04"

_CLASS = re.compile(rb"c((?:fairseq|omegaconf)\.[\w.]+)\n(\w+)\n")
"""The instruction of a pickle that refers to a class of fairseq or omegaconf."""
_INERT = (
    *("typing.Any", "typing.Union", "collections.defaultdict"),
    *(f"builtins.{name}" for name in ("dict", "list", "tuple", "int", "float", "bool", "str", "object")),
    *(f"numpy.{name}" for name in ("dtype", "core.multiarray.scalar", "_core.multiarray.scalar")),
)


class RefusedError(Exception):
    """The file cannot be used. The message continues "FILE ..."."""


class Inert:
    """A placeholder for an object of fairseq, omegaconf or numpy, without behaviour.

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

    def content(self) -> Any:
        """The content of omegaconf's containers and nodes, the name of an enum member, or None for anything else."""
        if isinstance(self.state, Mapping):
            return self.state.get("_content", self.state.get("_val"))
        return self.args[0] if len(self.args) == 1 and isinstance(self.args[0], str) else None


def read(data: bytes, *, arrays: bool) -> tuple[Any, list[np.ndarray], str]:
    """Read a file as plain values.

    Args:
      data: content of a .pt file, or of an .npz file.
      arrays: whether it is an .npz file.

    Returns:
      The content as JSON can store it (`decoded`), its arrays, floating-point ones in single precision, and the reason
      that damage to the file would go unnoticed, or "".

    Raises:
      RefusedError: the file refers to code, or would expand to far more values than a checkpoint has.
      Exception: the file is damaged; errors of any kind.
    """
    archive, unchecked = _verified(data) if arrays or data.startswith(_ARCHIVE) else (io.BytesIO(data), _OLDER)
    content = _arrays(archive) if arrays else _loaded(archive)
    if isinstance(content, Mapping):  # the names of what is not used are for error messages
        content = {name: content[name] if name in _KEPT else None for name in list(content)[:MOST_VALUES]}
    return *_encoded(content), unchecked


_OLDER = "it is in the format used before PyTorch 1.6, which has no checksums"


def _verified(data: bytes) -> tuple[io.BytesIO, str]:
    """An uncompressed copy of an archive whose checksums are right. torch itself does not compare them."""
    copy = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as archive, zipfile.ZipFile(copy, "w") as target:
        parts = archive.infolist()
        checked = any(part.CRC for part in parts)  # torch can be configured to write zeros
        for part in parts:
            if not checked:
                del part.CRC  # zipfile then does not compare checksums
            target.writestr(part.filename, archive.read(part))
    copy.seek(0)
    return copy, "" if checked else "it was written without checksums"


def _arrays(archive: io.BytesIO) -> dict[str, Any]:
    with np.load(archive, allow_pickle=False) as found:
        return {"model": {name: found[name] for name in found.files}}


def _loaded(stream: io.BytesIO) -> Any:
    """What torch's weights-only loader makes of a file. Classes of fairseq and omegaconf become placeholders."""
    import torch

    if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < _OLDEST_TORCH:  # CVE-2025-32434
        raise RefusedError(
            f"was not read: PyTorch {torch.__version__} is installed, whose weights-only loader can be made to execute "
            "code from a file; install 2.6 or later with pip install '.[fairseq]'"
        )
    names = {b".".join(found).decode() for found in _CLASS.findall(stream.getbuffer())}
    try:
        with torch.serialization.safe_globals([argparse.Namespace, *((Inert, name) for name in {*names, *_INERT})]):
            return torch.load(stream, map_location="cpu", weights_only=True)
    except Exception as error:
        if found := re.search(r"GLOBAL ([\w.]+)", str(error)):
            raise RefusedError(
                f"refers to {found[1][:200]} and was refused; nothing in it was executed. A fairseq checkpoint "
                "contains only tensors, numbers and its arguments; use one from fairseq-train"
            ) from error
        raise


def _encoded(content: Any) -> tuple[Any, list[np.ndarray]]:
    """Values for JSON: an array is {"array": its number}, a dictionary {"items": [[key, value], ...]}."""
    arrays: list[np.ndarray] = []
    room = iter(range(MOST_VALUES))

    def encode(value: Any, depth: int = 0) -> Any:
        if next(room, None) is None or depth > DEEPEST:
            raise RefusedError(
                f"has lists that expand to more than {MOST_VALUES} values or {DEEPEST} levels, which no checkpoint has"
            )
        if isinstance(value, argparse.Namespace):
            value = vars(value)
        if isinstance(value, Inert):
            value = value.content()
        if isinstance(value, Mapping):
            if not all(isinstance(key, str | int | float | None) for key in value):
                raise RefusedError("has a dictionary whose keys are neither strings nor numbers")
            return {"items": [[key, encode(item, depth + 1)] for key, item in value.items()]}
        if isinstance(value, list | tuple):
            return [encode(item, depth + 1) for item in value]
        if hasattr(value, "detach"):
            tensor = value.detach()
            value = (tensor.float() if tensor.is_floating_point() else tensor).numpy()
        if isinstance(value, np.ndarray):
            with np.errstate(over="ignore"):  # infinite values are refused later, by name
                single = value.astype(np.float32, copy=False) if value.dtype.kind == "f" else value
            arrays.append(np.asarray(single, order="C"))
            return {"array": len(arrays) - 1}
        return value if isinstance(value, str | int | float | None) else None

    return encode(content), arrays


def decoded(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """The content of a file from `read`: dictionaries, lists, arrays and scalars."""
    if isinstance(value, list):
        return [decoded(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return arrays[f"arr_{value['array']}"]  # as np.savez names them
    return {key: decoded(item, arrays) for key, item in value["items"]}


def _limit(memory: int, seconds: int) -> None:
    """Limit this process to so many more bytes and seconds of processor time, and its files to as many bytes."""
    used = Path("/proc/self/statm")
    limits = {resource.RLIMIT_CPU: seconds + int(time.process_time()) + 1, resource.RLIMIT_FSIZE: memory}
    if used.exists():  # only Linux enforces a limit of memory
        limits[resource.RLIMIT_AS] = memory + int(used.read_text().split()[0]) * resource.getpagesize()
    for kind, limit in limits.items():
        hard = resource.getrlimit(kind)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (limit, limit))


def result_of(data: bytes, *, arrays: bool) -> tuple[dict[str, Any], list[np.ndarray]]:
    """What `read` finds, as a result for JSON: "content" and "unchecked", or what is wrong as "refused" or "damaged".

    Raises:
      MemoryError: the file needs more memory than there is.
    """
    try:
        content, found, unchecked = read(data, arrays=arrays)
        return {"content": content, "unchecked": unchecked}, found
    except RefusedError as error:
        return {"refused": str(error)}, []
    except MemoryError:
        raise
    except Exception as error:
        line = next(iter(str(error).strip().splitlines()), "")
        if "allocate memory" in line:
            raise MemoryError from error
        odd = not line or line.startswith("Weights only load failed")  # torch's advice could execute the file
        return {"damaged": "damaged, truncated, or not a checkpoint" if odd else f"damaged: {line[:200]}"}, []


def main(kind: str, folder: str, memory: int, seconds: int) -> None:
    """Read a file of a kind (.pt or .npz) from standard input and write its result to a folder."""
    if kind != ".npz":
        import torch  # noqa: F401  (before the limits)
    _limit(memory, seconds)
    result, found = result_of(sys.stdin.buffer.read(), arrays=kind == ".npz")
    np.savez(Path(folder, ARRAYS), *found)
    Path(folder, CONTENT).write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
