"""Read and write fairseq checkpoints as records."""

import collections
import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from convs2s_jax.core.errors import UserError, located, shown
from convs2s_jax.interop.fairseq import arguments, files, recipe, values
from convs2s_jax.interop.fairseq.families import Family, family_of

_LONGEST_NAME = 200
_UPDATES = values.whole(0, values.MOST_STEPS)
_EPOCH = values.whole(0, 1_000_000)
_RATE = values.number(0, 1e6)
_MINUTE = np.finfo(np.float32).tiny
"""Momentum divided by a smaller learning rate does not fit into single precision."""


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

    Raises:
      UserError: the file cannot be read, is not a fairseq checkpoint, or contains non-finite tensors or invalid values.
    """
    content, where = files.read(path), f"--checkpoint={path}"
    args = arguments.flat(content.get("args"), content.get("cfg"), where)
    with located(where):
        family = family_of(args)
        args = values.checked(args, {**recipe.RULES, **family.rules})
        tensors = _tensors(content["model"], family)
        return _checked(content, path, args, tensors, family)


def _tensors(model: Mapping[Any, Any], family: Family) -> dict[str, np.ndarray]:
    """The state dict. Raises UserError unless its names are strings and its values finite tensors."""
    for name, value in model.items():
        if not isinstance(name, str) or not 1 <= len(name) <= _LONGEST_NAME:
            raise UserError(
                f"model contains the name {shown(name)}; expected a string of 1 to {_LONGEST_NAME} characters"
            )
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu":
            raise UserError(f"model['{name}'] is not a tensor of numbers")
        if not np.all(np.isfinite(value)) and not family.unread.fullmatch(name):
            raise UserError(f"model['{name}'] is not finite; use an earlier checkpoint")
    return dict(model)


def _checked(
    content: Mapping[str, Any], path: Path, args: dict[str, Any], tensors: dict[str, np.ndarray], family: Family
) -> Checkpoint:
    """The record of a file whose layout may be wrong anywhere."""
    try:
        history = (content.get("optimizer_history") or [{}])[-1]
        momentum, why = _momentum(content.get("last_optimizer_state"), history, family.momentum_obstacle(tensors))
        return Checkpoint(
            where=f"--checkpoint={path}",
            args=args,
            tensors=tensors,
            updates=_UPDATES("num_updates", history.get("num_updates", 0)),
            epoch=_epoch(content.get("extra_state") or {}),
            rate=_rate(content.get("last_optimizer_state"), history),
            best=_best(history),
            momentum=momentum,
            why=why,
            unchecked=files.unchecked(path),
        )
    except (TypeError, ValueError, KeyError, IndexError, AttributeError, OverflowError) as error:
        raise UserError(
            f"it is not laid out like a fairseq checkpoint: {type(error).__name__}: {shown(str(error))}"
        ) from error


def save(
    path: Path,
    *,
    args: dict[str, Any],
    tensors: Mapping[str, np.ndarray],
    names: Mapping[str, str],
    updates: int,
    epoch: int,
    rate: float,
    best: float,
    momentum: Momentum | None,
) -> None:
    """Write a checkpoint with the same keys as fairseq's.

    Args:
      path: file to write.
      args: fairseq's arguments.
      tensors: the state dict, in its order.
      names: `recipe.names`.
      updates, epoch: training progress; training resumes at the start of the epoch.
      rate: the current learning rate.
      best: lowest validation loss, in nats per token; infinite if there is none.
      momentum: NAG's state; with None, fairseq starts with a new optimiser state.
    """
    scheduler = {"lr": rate, "best": best / math.log(2)}  # infinite if there is none, as in a new run
    state = None
    if momentum is not None:
        group = {"lr": rate, "lr_old": momentum.rate} | {name: args[name] for name in ("momentum", "weight_decay")}
        state = {
            "state": {i: {"momentum_buffer": buffer} for i, buffer in enumerate(momentum.buffers)},
            "param_groups": [group | {"params": list(range(len(momentum.buffers)))}],
        }
    content = {
        "args": args,
        "cfg": None,
        "model": collections.OrderedDict(tensors),
        "criterion": None,
        "optimizer_history": [{**names, "lr_scheduler_state": scheduler, "num_updates": updates}],
        "task_state": {},
        "extra_state": {
            "train_iterator": {"version": 2, "epoch": epoch, "iterations_in_epoch": 0, "shuffle": True},
            "previous_training_time": 0.0,
        },
        "last_optimizer_state": state,
    }
    files.write(content, path)


def _momentum(state: Any, history: Mapping[str, Any], momentum_obstacle: str) -> tuple[Momentum | None, str]:
    if not state:
        return None, "it contains no optimiser state"
    if history.get("optimizer_name", "FairseqNAG") != "FairseqNAG":
        return None, f"its optimiser is {shown(history['optimizer_name'])}; only NAG's momentum is carried over"
    if momentum_obstacle:
        return None, momentum_obstacle
    group, states = state["param_groups"][0], state["state"]
    if not states:
        return None, "its optimiser has made no updates"
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
