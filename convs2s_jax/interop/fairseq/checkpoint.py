"""Read and write fairseq checkpoints as records."""

import argparse
import collections
import dataclasses
import errno
import importlib.util
import io
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convs2s_jax.core.config import literal
from convs2s_jax.core.errors import UserError, located, shown
from convs2s_jax.core.files import read_json
from convs2s_jax.interop.fairseq import recipe, untrusted, values
from convs2s_jax.interop.fairseq.families import Family, family_of

_LONGEST_NAME = 200
_UPDATES = values.whole(0, values.MOST_STEPS)
_EPOCH = values.whole(0, 1_000_000)
_RATE = values.number(0, 1e6)
_MINUTE = np.finfo(np.float32).tiny
"""Momentum divided by a smaller learning rate does not fit into single precision."""

ARGUMENTS = "config.json"
"""Name of the file with fairseq's arguments, next to an .npz file."""
_MOST_JSON = 2**24
_MEMORY, _COPIES, _SECONDS = 2**30, 10, 120
"""Bytes, plus copies of the file, and seconds of processor time in which a checkpoint must be read."""

_SECTIONS = (
    "distributed_training",
    "dataset",
    "task",
    "optimization",
    "optimizer",
    "lr_scheduler",
    "criterion",
    "common",
    "model",
)
_NAMED = {"model": "arch", "optimizer": "optimizer", "lr_scheduler": "lr_scheduler", "criterion": "criterion"}


@dataclasses.dataclass(frozen=True)
class Momentum:
    """The state of fairseq's NAG.

    Attributes:
      buffers: one for each parameter, in the order of fairseq's parameters.
      rate: the learning rate by which the buffers are scaled.
    """

    buffers: list[np.ndarray]
    rate: float


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """The parts of a checkpoint file that are used.

    Attributes:
      where: file name, for error messages.
      args: the fairseq arguments that are used, by name, checked.
      tensors: the state dict.
      updates: number of updates so far.
      epoch: the current epoch, from 1.
      rate: learning rate of the last update; None if unknown.
      best: best validation loss that its schedule has seen, in bits per token; infinite if there is none.
      momentum: momentum of the optimiser; None if the file has no usable momentum.
      why: the reason that there is no momentum, or "".
      unchecked: the reason that damage to the file would go unnoticed, or "".
    """

    where: str
    args: dict[str, Any]
    tensors: dict[str, np.ndarray]
    updates: int
    epoch: int
    rate: float | None
    best: float
    momentum: Momentum | None
    why: str
    unchecked: str


def load(path: Path) -> Checkpoint:
    """Read a checkpoint without executing anything in it.

    Args:
      path: a fairseq .pt file, or an .npz file of its state dict with fairseq's arguments in `config.json` next to it.
        The latter does not require torch.

    Raises:
      UserError: the file cannot be read, is not a fairseq checkpoint, or contains non-finite tensors or invalid values.
    """
    return parsed(*read(path), f"--checkpoint={path}")


def read(path: Path) -> tuple[dict[str, Any], str]:
    """Read a checkpoint as nested dictionaries and lists, with tensors as float32 or integer arrays.

    Returns:
      The content, and the reason that damage to the file would go unnoticed, or "" if checksums detect it.

    Raises:
      UserError: the file does not exist, is damaged or not a checkpoint, refers to code or needs far more memory than
        its size, or no torch version that loads safely is installed.
    """
    where, plain = f"--checkpoint={path}", path.suffix == ".npz"
    if not path.is_file():
        raise UserError(f"{where} {'is not a file; specify a .pt or .npz file' if path.exists() else 'does not exist'}")
    if not plain:
        check_torch(where)
    result, arrays = _contained(path, where)
    if "refused" in result:
        raise UserError(f"{where} {result['refused']}")
    if "damaged" in result:
        kind = "an .npz file of plain arrays" if plain else "a checkpoint that torch can read"
        raise UserError(f"{where} is not {kind}: it is {result['damaged']}")
    content = untrusted.decoded(result["content"], arrays)
    if plain:
        beside, remedy = path.with_name(ARGUMENTS), f"it must contain fairseq's arguments for {path.name}"
        if not beside.exists():
            raise UserError(f"{beside} is missing; {remedy}")
        args = read_json(beside, remedy=remedy, most=_MOST_JSON)
        if not isinstance(args, dict):
            raise UserError(f"{beside} is not a JSON object; {remedy}, by name")
        return {**content, "args": args}, f"the arguments next to it, {beside}, have no checksum"
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        names = list(content)[:20] if isinstance(content, dict) else [type(content).__name__]
        held = ", ".join(shown(name).strip("'") for name in names)
        raise UserError(f"{where} contains no 'model', so it is not a fairseq checkpoint (it contains: {held})")
    return content, result["unchecked"]


def check_torch(where: str) -> None:
    """Raise UserError if torch is not installed. `where` is the flag that needs it."""
    if importlib.util.find_spec("torch") is None:
        raise UserError(
            f"{where}: fairseq checkpoints require PyTorch, which is not installed; run pip install '.[fairseq]'"
        )


def _contained(path: Path, where: str) -> tuple[dict[str, Any], Mapping[str, np.ndarray]]:
    """Read a file in a process whose memory and time are limited: the result and the arrays of `untrusted`."""
    try:
        memory = _MEMORY + _COPIES * path.stat().st_size
        with path.open("rb") as file, tempfile.TemporaryDirectory() as folder:
            command = (sys.executable, "-P", untrusted.__file__, path.suffix, folder, str(memory), str(_SECONDS))
            done = subprocess.run(command, stdin=file, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                with np.load(Path(folder, untrusted.ARRAYS), allow_pickle=False) as arrays:
                    return json.loads(Path(folder, untrusted.CONTENT).read_bytes()), dict(arrays)
    except OSError as error:
        raise UserError(f"{where} cannot be read: {error.strerror}") from error
    last = (done.stderr.strip().splitlines() or [""])[-1]
    if done.returncode < 0 or "MemoryError" in last or os.strerror(errno.EFBIG) in last:
        last = f"that takes more than {_SECONDS} seconds or {memory / 2**30:.1f} GiB of memory, far more than its size"
    raise UserError(f"{where} was not read: {last}")


def parsed(content: Mapping[str, Any], unchecked: str, where: str) -> Checkpoint:
    """The record of a file whose content may be anything (`read`)."""
    args = _flat(content.get("args"), content.get("cfg"), where)
    with located(where):
        family = family_of(args)
        args = values.checked(args, {**recipe.RULES, **family.rules})
        _check_tensors(content["model"], family)
        try:
            state, history = content.get("last_optimizer_state"), (content.get("optimizer_history") or [{}])[-1]
            momentum, why = _momentum(state, history, family.momentum_obstacle(content["model"]))
            return Checkpoint(
                where=where,
                args=args,
                tensors=dict(content["model"]),
                updates=_UPDATES("num_updates", history.get("num_updates", 0)),
                epoch=_epoch(content.get("extra_state") or {}),
                rate=_rate(state, history),
                best=_best(history),
                momentum=momentum,
                why=why,
                unchecked=unchecked,
            )
        except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError) as error:
            raise UserError(
                f"it is not laid out like a fairseq checkpoint: {type(error).__name__}: {shown(str(error))}"
            ) from error


def _flat(args: Any, cfg: Any, where: str) -> dict[str, Any]:
    """All arguments of a checkpoint by name, from either format.

    Args:
      args: arguments in the older format, a mapping; None in the later format.
      cfg: arguments in the later format, a mapping of sections; the model section takes precedence.
      where: file name, for error messages.

    Raises:
      UserError: neither is present.
    """
    if isinstance(args, Mapping):
        return dict(args)
    if not isinstance(cfg, Mapping) or not isinstance(cfg.get("model"), Mapping):
        raise UserError(f"{where} contains neither 'args' nor 'cfg' with a 'model', so fairseq's arguments are unknown")
    result: dict[str, Any] = {}
    for section in _SECTIONS:
        values = cfg.get(section)
        if isinstance(values, Mapping):
            result |= {name: value for name, value in values.items() if name != "_name"}
    for section, name in _NAMED.items():
        values = cfg.get(section)
        if name not in result and isinstance(values, Mapping) and "_name" in values:
            result[name] = values["_name"]
    return result


def _check_tensors(model: Mapping[Any, Any], family: Family) -> None:
    """Raise UserError unless the names of a state dict are strings and its values finite tensors."""
    for name, value in model.items():
        if not isinstance(name, str) or not 1 <= len(name) <= _LONGEST_NAME:
            raise UserError(
                f"model contains the name {shown(name)}; expected a string of 1 to {_LONGEST_NAME} characters"
            )
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu":
            raise UserError(f"model['{name}'] is not a tensor of numbers")
        if not np.all(np.isfinite(value)) and not family.unread.fullmatch(name):
            raise UserError(f"model['{name}'] is not finite; use an earlier checkpoint")


def save(
    path: Path,
    *,
    args: dict[str, Any],
    tensors: Mapping[str, np.ndarray],
    parameters: int,
    names: Mapping[str, str],
    updates: int,
    epoch: int,
    rate: float,
    best: float,
    momentum: Momentum | None,
) -> None:
    """Write a checkpoint with the same keys as fairseq's, and verify it.

    Args:
      path: file to write.
      args: fairseq's arguments.
      tensors: the state dict, in its order.
      parameters: number of its tensors that the optimiser trains.
      names: `recipe.names`.
      updates, epoch: training progress; training resumes at the start of the epoch.
      rate: the current learning rate.
      best: lowest validation loss, in nats per token; infinite if there is none.
      momentum: NAG's state; None for an empty state. fairseq would count updates from 0 if there was no state at all.

    Raises:
      UserError: what is read back differs from what was written.
    """
    group = {"lr": rate, "weight_decay": args["weight_decay"], "params": list(range(parameters))}
    if args["optimizer"] == "nag":
        group |= {"lr_old": momentum.rate if momentum else rate, "momentum": args["momentum"]}
    else:
        group |= {"betas": literal(args["adam_betas"]), "eps": args["adam_eps"], "amsgrad": False}
    buffers = momentum.buffers if momentum else []
    scheduler = {"lr": rate, "best": best / math.log(2)}  # infinite if there is none, as in a new run
    _write(
        path,
        {
            "args": argparse.Namespace(**args),
            "cfg": None,
            "model": collections.OrderedDict(tensors),
            "criterion": None,
            "optimizer_history": [{**names, "lr_scheduler_state": scheduler, "num_updates": updates}],
            "task_state": {},
            "extra_state": {
                "train_iterator": {"version": 2, "epoch": epoch, "iterations_in_epoch": 0, "shuffle": True},
                "previous_training_time": 0.0,
            },
            "last_optimizer_state": {
                "state": {i: {"momentum_buffer": buffer} for i, buffer in enumerate(buffers)},
                "param_groups": [group],
            },
        },
    )
    found, unchecked = read(path)
    if unchecked or not all(np.array_equal(found["model"][name], value) for name, value in tensors.items()):
        raise UserError(f"--output: {path.name} differs from what was written when read back; use another disk")


def _write(path: Path, content: dict[str, Any]) -> None:
    """Write values with torch, with checksums. Arrays become tensors."""
    import torch

    def convert(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return torch.from_numpy(np.array(value))
        if isinstance(value, dict):
            return type(value)((key, convert(item)) for key, item in value.items())
        return [convert(item) for item in value] if isinstance(value, list) else value

    buffer = io.BytesIO()  # on a full disk torch would not raise OSError
    torch.serialization.set_crc32_options(True)
    torch.save(convert(content), buffer)
    path.write_bytes(buffer.getbuffer())


def _momentum(state: Any, history: Mapping[str, Any], momentum_obstacle: str) -> tuple[Momentum | None, str]:
    if not state or not state["state"]:
        return None, "it contains no optimiser state"
    if history.get("optimizer_name", "FairseqNAG") != "FairseqNAG":
        return None, f"its optimiser is {shown(history['optimizer_name'])}; only NAG's momentum is carried over"
    if momentum_obstacle:
        return None, momentum_obstacle
    group, states = state["param_groups"][0], state["state"]
    rate = float(_RATE("its lr_old", group["lr"] if group.get("lr_old") is None else group["lr_old"]))
    if rate < _MINUTE:
        return None, f"its momentum is scaled by a learning rate of only {rate:g}"
    order = [i for i in group["params"] if i in states]
    if len(order) < len(states):
        raise KeyError("a parameter of last_optimizer_state is in no group")
    buffers = [states[i]["momentum_buffer"] for i in order]
    for i, buffer in zip(order, buffers, strict=True):
        if not isinstance(buffer, np.ndarray) or buffer.dtype.kind != "f":
            raise TypeError(f"momentum_buffer {shown(i)} of last_optimizer_state is not a tensor of numbers")
    return Momentum(buffers, rate), ""


def _rate(state: Any, history: Mapping[str, Any]) -> float | None:
    """The learning rate stored with the optimiser, or with the scheduler."""
    groups: Sequence[Mapping[str, Any]] = state["param_groups"] if state else []
    rate = groups[0].get("lr") if groups else (history.get("lr_scheduler_state") or {}).get("lr")
    return float(_RATE("its learning rate", rate)) or None if rate is not None else None


def _best(history: Mapping[str, Any]) -> float:
    """The best validation loss recorded by the learning rate scheduler."""
    best = (history.get("lr_scheduler_state") or {}).get("best")
    return float(best) if isinstance(best, int | float) and math.isfinite(best) else math.inf


def _epoch(extra: Mapping[str, Any]) -> int:
    """The epoch to resume from. Version 1 of fairseq's iterator stores the number of the finished epoch."""
    iterator = extra.get("train_iterator") or {"epoch": extra.get("epoch", 1)}
    finished = iterator.get("version", 1) == 1 and iterator.get("iterations_in_epoch", 0) > 0
    return max(1, _EPOCH("its epoch", iterator["epoch"]) + finished)
