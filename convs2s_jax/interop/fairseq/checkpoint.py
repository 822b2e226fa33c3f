"""Read fairseq checkpoints as records."""

import contextlib
import dataclasses
import errno
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from convs2s_jax.core.errors import UserError, located, shown
from convs2s_jax.core.packages import check_installed
from convs2s_jax.interop.fairseq import untrusted
from convs2s_jax.interop.fairseq.families import family_of

_MEMORY, _COPIES, _SECONDS = 2**30, 10, 120
"""Bytes, plus copies of the file, and seconds of processor time in which a checkpoint must be read."""
_SECTIONS = {
    **dict.fromkeys(("distributed_training", "dataset", "task", "optimization"), ""),
    **{name: name for name in ("optimizer", "lr_scheduler", "criterion")},
    "common": "",
    "model": "arch",
}
"""Sections of the later format of arguments, the most important last, and the argument that names their kind."""


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The parts of a checkpoint file that are used.

    Attributes:
      where: file name, for error messages.
      args: fairseq's arguments by name.
      tensors: the state dict.
      updates: number of updates so far.
      epoch: the current epoch, from 1.
      rate: learning rate of the last update; None if unknown.
      best: best validation loss that its schedule has seen, in bits per token; infinite if there is none.
      momentum: NAG's buffers in the order of fairseq's parameters; empty if the file has none.
      momentum_rate: the learning rate by which they are scaled.
    """

    where: str
    args: Mapping[str, Any]
    tensors: dict[str, np.ndarray]
    updates: int
    epoch: int
    rate: float | None
    best: float
    momentum: list[np.ndarray]
    momentum_rate: float


@contextlib.contextmanager
def laid_out(where: str) -> Iterator[None]:
    """Turn errors about values that no checkpoint has into a UserError with the name of the file."""
    try:
        with located(where):
            yield
    except UserError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise UserError(
            f"{where} is not laid out like a fairseq checkpoint ({type(error).__name__}: {shown(str(error))}); use one "
            "from fairseq-train"
        ) from error


def load(path: Path) -> Checkpoint:
    """Read a .pt file without executing anything in it.

    Raises:
      UserError: the file cannot be read, is not a fairseq checkpoint, or contains non-finite tensors or invalid values.
    """
    where = f"--checkpoint={path}"
    check_installed("reading fairseq checkpoints", ("torch",), "fairseq")
    return parsed(read(path, where), where)


def read(path: Path, where: str) -> dict[str, Any]:
    """Read a checkpoint in a process whose memory and time are limited.

    Returns:
      Nested dictionaries and lists, with tensors as float32 or integer arrays. All keys are strings.

    Raises:
      UserError: the file does not exist, is damaged or not a checkpoint, refers to code or needs far more memory than
        its size, or no torch version that loads safely is installed.
    """
    try:
        memory = _MEMORY + _COPIES * path.stat().st_size
        path.open("rb").close()
    except OSError as error:
        raise UserError(f"{where} cannot be read: {error.strerror}; specify a .pt file") from error
    with tempfile.TemporaryDirectory() as folder:
        command = (sys.executable, "-P", untrusted.__file__, path, folder, str(memory), str(_SECONDS))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            with np.load(Path(folder, untrusted.ARRAYS), allow_pickle=False) as arrays:
                return untrusted.decoded(Path(folder, untrusted.CONTENT).read_text(), dict(arrays))
    last = (done.stderr.strip().splitlines() or [""])[-1]
    if done.returncode < 0 or "MemoryError" in last or os.strerror(errno.EFBIG) in last:
        last = f"takes more than {_SECONDS} seconds or {memory / 2**30:.1f} GiB of memory, far more than its size"
    raise UserError(f"{where} {last}")


def parsed(content: Mapping[str, Any], where: str) -> Checkpoint:
    """The record of a file whose content may be anything (`read`)."""
    with laid_out(where):
        args, tensors = _args(content), content["model"]
        unread = family_of(args).UNREAD
        for name, value in tensors.items():
            if not np.all(np.isfinite(value)) and not unread.fullmatch(name):
                raise UserError(f"model['{shown(name)[1:-1]}'] is not finite; use an earlier checkpoint")
        state, history = content.get("last_optimizer_state") or {}, (content.get("optimizer_history") or [{}])[-1]
        scheduler = history.get("lr_scheduler_state") or {}
        group = (state.get("param_groups") or [scheduler])[0]
        rate, best, buffers = group.get("lr"), scheduler.get("best"), state.get("state") or {}
        order = group["params"] if history.get("optimizer_name", "FairseqNAG") == "FairseqNAG" and buffers else []
        used = [buffers[str(i)]["momentum_buffer"] for i in order if str(i) in buffers]
        return Checkpoint(
            where=where,
            args=args,
            tensors=dict(tensors),
            updates=int(history.get("num_updates", 0)),
            epoch=_epoch(content.get("extra_state") or {}),
            rate=float(rate or 0) or None,
            best=float(best) if isinstance(best, int | float) and math.isfinite(best) else math.inf,
            momentum=[np.asarray(buffer, np.float32) for buffer in used],
            momentum_rate=float(rate or 0 if group.get("lr_old") is None else group["lr_old"]),
        )


def _args(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """All arguments of a checkpoint by name, from either format."""
    args: Mapping[str, Any] | None = content.get("args")
    if args is not None:
        return args
    result: dict[str, Any] = {}
    for section, kind in _SECTIONS.items():
        values = dict(content["cfg"].get(section) or {})
        name = values.pop("_name", None)
        if kind and name is not None:
            values.setdefault(kind, name)
        result |= values
    return result


def _epoch(extra: Mapping[str, Any]) -> int:
    """The epoch to resume from. Version 1 of fairseq's iterator stores the number of the finished epoch."""
    iterator = extra.get("train_iterator") or {"epoch": extra.get("epoch", 1)}
    finished = iterator.get("version", 1) == 1 and iterator.get("iterations_in_epoch", 0) > 0
    return max(1, int(iterator["epoch"]) + finished)
