"""The supported families of fairseq architectures, and their parameters."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from convs2s_jax.core.errors import UserError, shown
from convs2s_jax.core.tokens import SPECIAL
from convs2s_jax.interop.fairseq import fconv, lightconv
from convs2s_jax.interop.fairseq.values import Rule
from convs2s_jax.models import conversion, encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.nn.trees import path_of
from convs2s_jax.nn.types import Tree

_LISTED = 5
_TABLE = "decoder.embed_tokens.weight"
FEWEST = len(SPECIAL)
"""Minimum number of rows of an embedding table: one for each special symbol."""


class Family(NamedTuple):
    """Architectures with the same set of arguments.

    Attributes:
      kind: our kind of encoder and decoder.
      presets: arguments by `--arch`.
      rules: rules for the arguments.
      config: converts fairseq's arguments to a config.
      args: converts a config to fairseq's arguments.
      later: converts (config, fairseq's state dict) to the names and shapes of its last version.
      place: (our path of a parameter, its shape, the state dict) -> fairseq's name and shape, and whether the axes are
        reversed.
      order: sort key for fairseq's order of names.
      unused: (tensors by fairseq's names) -> what fairseq stores beside the parameters.
      output: name of the softmax layer's kernel, which may be present even if it is tied to the table.
      unread: names of tensors that fairseq stores but does not use.
      momentum_obstacle: the reason that the momentum of a checkpoint cannot be imported, or "".
      carries_momentum: whether the momentum of fairseq's NAG is carried over.
      others: prefixes of architecture names that are not encoder-decoders.
    """

    kind: str
    presets: Mapping[str, Any]
    rules: Mapping[str, Rule]
    config: Callable[[Mapping[str, Any]], ModelConfig]
    args: Callable[[ModelConfig], dict[str, Any]]
    later: Callable[[ModelConfig, Mapping[str, Any]], dict[str, Any]]
    place: Callable[[str, tuple[int, ...], Mapping[str, Any]], tuple[str, tuple[int, ...], bool]]
    order: Callable[[str], Any]
    unused: Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]
    output: str
    unread: re.Pattern[str]
    momentum_obstacle: Callable[[Mapping[str, Any]], str]
    carries_momentum: bool
    others: tuple[str, ...]


FAMILIES: dict[str, Family] = {
    "fconv": Family(
        kind="conv",
        presets=fconv.PRESETS,
        rules=fconv.RULES,
        config=fconv.config_from_args,
        args=fconv.args_from_config,
        later=fconv.later,
        place=fconv.place,
        order=fconv.order,
        unused=fconv.unused,
        output=fconv.OUTPUT,
        unread=fconv.UNREAD,
        momentum_obstacle=fconv.momentum_obstacle,
        carries_momentum=True,
        others=("fconv_lm", "fconv_self_att"),
    ),
    "lightconv": Family(
        kind="light",
        presets=lightconv.PRESETS,
        rules=lightconv.RULES,
        config=lightconv.config_from_args,
        args=lightconv.args_from_config,
        later=lightconv.later,
        place=lightconv.place,
        order=lambda _name: 0,
        unused=lightconv.unused,
        output=lightconv.OUTPUT,
        unread=lightconv.UNREAD,
        momentum_obstacle=lambda _tensors: "only the momentum of fconv models is carried over",
        carries_momentum=False,
        others=("lightconv_lm",),
    ),
}


def family_of(args: Mapping[str, Any]) -> Family:
    """The family of a checkpoint, by its `arch`; fconv if that is missing.

    Raises:
      UserError: an unsupported architecture.
    """
    arch = args.get("arch", "fconv")
    for name, family in FAMILIES.items():
        known = isinstance(arch, str) and (arch == name or arch.startswith(f"{name}_"))
        if known and not arch.startswith(family.others):
            return family
    presets = ", ".join(preset for family in FAMILIES.values() for preset in family.presets)
    raise UserError(
        f"arch is {shown(arch)}; only fairseq's {' and '.join(FAMILIES)} models can be read, such as {presets}"
    )


def family_of_model(cfg: ModelConfig) -> Family:
    """The family that matches the kinds of encoder and decoder.

    Raises:
      UserError: a model without a fairseq equivalent.
    """
    for family in FAMILIES.values():
        if cfg.encoder.kind == cfg.decoder.kind == family.kind:
            return family
    raise UserError(
        f"the model's encoder is of kind '{cfg.encoder.kind}' and its decoder of kind '{cfg.decoder.kind}'; no fairseq "
        "checkpoint has these parameters"
    )


def config_from_args(args: Mapping[str, Any]) -> ModelConfig:
    """The model described by fairseq's arguments.

    Layer lists are parsed as literals, never evaluated. Missing arguments default to the preset `arch`, or to `fconv`.

    Raises:
      UserError: an unsupported architecture, or arguments that none of our models support.
    """
    return family_of(args).config(args)


def params_from_state_dict(cfg: ModelConfig, tensors: Mapping[str, Any]) -> Params:
    """Parameters in their trained form, with kernels split into direction and length, from fairseq's state dict.

    Args:
      cfg: the model (`config_from_args`). Vocabulary sizes are taken from the embedding tables.
      tensors: arrays by fairseq's names, of any version. What fairseq does not use is ignored.

    Raises:
      UserError: a model without a fairseq equivalent; or names the tensors that are missing, misshapen or surplus, or a
        tied kernel that differs from the table.
    """
    family = family_of_model(cfg)
    tensors = family.later(cfg, tensors)
    told, copies = [], _copies(cfg, family)
    used = {*copies, *(name for name in tensors if family.unread.fullmatch(name))}
    source = "decoder" if cfg.share_embeddings else "encoder"
    sizes = {"source_vocabulary": _rows(tensors, source), "target_vocabulary": _rows(tensors, "decoder")}
    abstract = jax.eval_shape(
        lambda key: conversion.split(encoder_decoder.init(key, cfg, **sizes), cfg), jax.random.key(0)
    )

    def read(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> Any:
        name, shape, reverse = family.place(path_of(path), leaf.shape, tensors)
        used.add(name)
        if name not in tensors:
            told.append(f"{name} is missing")
            return leaf
        value = np.asarray(tensors[name])
        if value.shape != shape:
            told.append(f"{name} has shape {value.shape}, expected {shape}")
            return leaf
        if value.dtype.kind != "f":
            told.append(f"{name} contains integers, expected floating-point numbers")
            return leaf
        return jax.device_put(value.reshape(leaf.shape[::-1]).T if reverse else value)

    params: Params = jax.tree_util.tree_map_with_path(read, abstract)
    told += [f"{name} has no counterpart in the model" for name in sorted(set(tensors) - used)]
    told += [
        f"{name} differs from {_TABLE}, but the model shares them"
        for name in copies
        if name in tensors and _TABLE in tensors and not np.array_equal(tensors[name], tensors[_TABLE])
    ]
    if told:
        more = f"; and {len(told) - _LISTED} more" if len(told) > _LISTED else ""
        raise UserError("the checkpoint does not match the configuration: " + "; ".join(told[:_LISTED]) + more)
    return params


def state_dict(params: Tree, family: Family = FAMILIES["fconv"]) -> dict[str, np.ndarray]:
    """Convert parameters to arrays by fairseq's names, in the order of its `model.parameters()`.

    This is the inverse of `params_from_state_dict`. It also converts gradients and optimiser state.
    """
    result = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name, shape, reverse = family.place(path_of(path), leaf.shape, {})
        value = np.asarray(leaf)
        result[name] = np.ascontiguousarray((value.T if reverse else value).reshape(shape))
    return {name: result[name] for name in sorted(result, key=family.order)}


def whole_state_dict(cfg: ModelConfig, params: Params) -> tuple[dict[str, np.ndarray], int]:
    """fairseq's `model.state_dict()`, and the number of its tensors that are parameters.

    The others are versions (2) and further names of a shared table.
    """
    family = family_of_model(cfg)
    own = state_dict(params, family)
    tensors = own | family.unused(own)
    count = sum(not name.endswith(".version") for name in tensors)
    tensors |= dict.fromkeys(_copies(cfg, family), own[_TABLE])
    return {name: tensors[name] for name in sorted(tensors, key=family.order)}, count


def trace(cfg: ModelConfig, params: Params, buffers: Sequence[np.ndarray], rate: float) -> Tree:
    """u = -b / lr for each parameter: the trace of our Nesterov optimiser from the momentum b of fairseq's NAG.

    fairseq stores b = -lr u, where lr is the rate of its last update, and rescales b when the rate changes.

    Args:
      cfg: the model, an `fconv`.
      params: its parameters.
      buffers: b in fairseq's order of parameters.
      rate: lr.

    Raises:
      UserError: the buffers do not match the parameters, or u is not finite.
    """
    expected = state_dict(params)
    try:
        if len(expected) != len(buffers):
            raise UserError(f"{len(buffers)} buffers for {len(expected)} parameters")
        with np.errstate(over="ignore"):
            values = {name: -b.astype(np.float32) / np.float32(rate) for name, b in zip(expected, buffers, strict=True)}
        u = params_from_state_dict(cfg, values | fconv.unused({}))
    except UserError as error:
        odd = str(error).rpartition("configuration: ")[2]
        raise UserError(
            f"its momentum buffers do not match its parameters ({odd}), as after training in half precision; use "
            "--nomomentum to start from zero momentum"
        ) from error
    for name, value in values.items():
        if not np.all(np.isfinite(value)):
            raise UserError(
                f"the momentum of {name}, divided by its learning rate of {rate:g}, is not finite; use --nomomentum to "
                "start from zero momentum"
            )
    return u


def _copies(cfg: ModelConfig, family: Family) -> list[str]:
    """Other names under which fairseq stores the decoder's table."""
    tied = [family.output] if cfg.decoder.tied_output else []
    return [*tied, "encoder.embed_tokens.weight"] if cfg.share_embeddings else tied


def _rows(tensors: Mapping[str, Any], side: str) -> int:
    """Number of rows of a table, at least `FEWEST`. A smaller table is later reported as missing or misshapen."""
    shape: tuple[int, ...] = np.shape(tensors.get(f"{side}.embed_tokens.weight", ()))
    return max(FEWEST, shape[0] if len(shape) == 2 else 0)
