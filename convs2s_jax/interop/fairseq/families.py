"""The supported families of fairseq architectures, and their parameters.

A family is a module of architectures with the same set of arguments:

* `KIND`: our kind of encoder and decoder.
* `config_from_args`, `args_from_config`: fairseq's arguments to a config, and back.
* `place`: (our path of a parameter, its shape, the state dict) -> fairseq's name and shape, and whether the axes are
  reversed.
* `later`: a state dict of fairseq with the names and shapes of its last version.
* `order`: sort key for fairseq's order of names.
* `unused`: (tensors by fairseq's names) -> what fairseq stores beside the parameters.
* `OUTPUT`: name of the softmax layer's kernel, which may be present even if it is tied to the table.
* `UNREAD`: names of tensors that fairseq stores but does not use.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from convs2s_jax.core.errors import UserError, shown
from convs2s_jax.core.tokens import SPECIAL
from convs2s_jax.interop.fairseq import fconv, lightconv
from convs2s_jax.models import conversion, encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.nn.trees import path_of
from convs2s_jax.nn.types import Tree

_LISTED = 5
_TABLE = "decoder.embed_tokens.weight"
_ARCH = re.compile(r"(fconv|lightconv)(?!_lm|_self_att)(_.*)?")
"""Architectures that are encoder-decoders of a family; others have names such as fconv_lm."""


FAMILIES = {"fconv": fconv, "lightconv": lightconv}


def family_of(args: Mapping[str, Any]) -> Any:
    """The family of a checkpoint, by its `arch`; fconv if that is missing.

    Raises:
      UserError: an unsupported architecture.
    """
    arch = args.get("arch", "fconv")
    found = _ARCH.fullmatch(arch)
    if found is None:
        raise UserError(f"arch is {shown(arch)}; only fairseq's fconv and lightconv translation models can be read")
    return FAMILIES[found[1]]


def family_of_model(cfg: ModelConfig) -> Any:
    """The family that matches the kinds of encoder and decoder.

    Raises:
      UserError: a model without a fairseq equivalent.
    """
    for family in FAMILIES.values():
        if cfg.encoder.kind == cfg.decoder.kind == family.KIND:
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
    cfg: ModelConfig = family_of(args).config_from_args(args)
    return cfg


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
    tensors = family.later(tensors)
    told, copies = [], _copies(cfg, family)
    used = {*copies, *(name for name in tensors if family.UNREAD.fullmatch(name))}
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


def state_dict(params: Tree, family: Any = fconv) -> dict[str, np.ndarray]:
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
    way_out = "use --nomomentum to start from zero momentum"
    if [b.shape for b in buffers] != [value.shape for value in expected.values()]:
        raise UserError(
            f"its {len(buffers)} momentum buffers do not match its {len(expected)} parameters, as after training in "
            f"half precision; {way_out}"
        )
    with np.errstate(all="ignore"):
        values = {name: -b.astype(np.float32) / np.float32(rate) for name, b in zip(expected, buffers, strict=True)}
    if not all(np.all(np.isfinite(value)) for value in values.values()):
        raise UserError(f"its momentum, divided by the learning rate of {rate:g}, is not finite; {way_out}")
    return params_from_state_dict(cfg, values | fconv.unused({}))


def _copies(cfg: ModelConfig, family: Any) -> list[str]:
    """Other names under which fairseq stores the decoder's table."""
    tied = [family.OUTPUT] if cfg.decoder.tied_output else []
    return [*tied, "encoder.embed_tokens.weight"] if cfg.share_embeddings else tied


def _rows(tensors: Mapping[str, Any], side: str) -> int:
    """Number of rows of a table, at least one for each special symbol. A missing table is reported later."""
    shape: tuple[int, ...] = np.shape(tensors.get(f"{side}.embed_tokens.weight", ()))
    return max([len(SPECIAL), *shape[:1]])
