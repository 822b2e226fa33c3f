"""Read a checkpoint of unknown origin. `checkpoint.read` runs this file as a process with little memory and time.

torch's weights-only loader executes nothing, but a small file can claim terabytes, or lists that never end. The limits
of the operating system stop all of them. What was read is handed back as plain arrays and JSON. This file must not
import this package.
"""

import argparse
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
ARRAY = "__array__"
"""The key of an array's number, which stands in place of the array."""
_OLDEST_TORCH = (2, 6)
_KEPT = ("args", "cfg", "model", "optimizer_history", "extra_state", "last_optimizer_state")
_CLASS = re.compile(rb"c((?:fairseq|omegaconf)\.[\w.]{1,200})\n(\w+)\n")
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


def read(path: Path) -> tuple[str, list[np.ndarray]]:
    """Read a .pt file.

    Returns:
      What importing uses of it as JSON (`decoded`), and its arrays, floating-point ones in single precision.

    Raises:
      RefusedError: the file refers to code, is damaged or is not a checkpoint.
      MemoryError: it needs more memory than there is.
    """
    arrays: list[np.ndarray] = []

    def plain(value: Any) -> Any:
        if isinstance(value, argparse.Namespace):
            return vars(value)
        if isinstance(value, Inert):
            return value.content()
        if not hasattr(value, "detach"):
            return None
        tensor = value.detach()
        arrays.append(np.ascontiguousarray((tensor.float() if tensor.is_floating_point() else tensor).numpy()))
        return {ARRAY: len(arrays) - 1}

    try:
        content = _loaded(path)
        if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
            raise RefusedError("contains no 'model', so it is not a fairseq checkpoint")
        return json.dumps({name: content.get(name) for name in _KEPT}, default=plain), arrays
    except (RefusedError, MemoryError):
        raise
    except Exception as error:
        if "allocate memory" in str(error):
            raise MemoryError from error
        if found := re.search(r"GLOBAL ([\w.]+)", str(error)):
            raise RefusedError(
                f"refers to {found[1][:200]} and was refused; nothing in it was executed. A fairseq checkpoint "
                "contains only tensors, numbers and its arguments; use one from fairseq-train"
            ) from error
        raise RefusedError("is damaged, truncated, or not a checkpoint that torch can read") from error


def _loaded(path: Path) -> Any:
    """What torch's weights-only loader makes of a file. Classes of fairseq and omegaconf become placeholders."""
    import torch

    if tuple(map(int, re.findall(r"\d+", torch.__version__)[:2])) < _OLDEST_TORCH:  # CVE-2025-32434
        raise RefusedError(
            f"was not read: PyTorch {torch.__version__} is installed, whose weights-only loader can be made to execute "
            "code from a file; install 2.6 or later with pip install '.[fairseq]'"
        )
    data = path.read_bytes()
    if data.startswith(b"PK\x03\x04"):
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:  # torch itself does not compare checksums
                raise ValueError("a checksum differs")
    names = {b".".join(found).decode() for found in _CLASS.findall(data)}
    with torch.serialization.safe_globals([argparse.Namespace, *((Inert, name) for name in {*names, *_INERT})]):
        return torch.load(path, map_location="cpu", weights_only=True)


def decoded(text: str, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The content of a file from the JSON of `read` and its arrays, by the names that np.savez gives them."""
    found: dict[str, Any] = json.loads(
        text, object_hook=lambda value: arrays[f"arr_{value[ARRAY]}"] if ARRAY in value else value
    )
    return found


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


def main(path: str, folder: str, memory: int, seconds: int) -> None:
    """Read a file, and write its JSON and its arrays to a folder."""
    import torch  # noqa: F401  (before the limits)

    _limit(memory, seconds)
    try:
        text, arrays = read(Path(path))
    except RefusedError as error:
        sys.exit(str(error))
    np.savez(Path(folder, ARRAYS), *arrays)
    Path(folder, CONTENT).write_text(text)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
