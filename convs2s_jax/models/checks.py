"""Checks of what a caller hands to a model: one sentence instead of an error from deep inside.

All of them look at types, shapes and dtypes only, so they cost nothing in a compiled function.
"""

import numbers
import types
import typing
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from convs2s_jax.core.tokens import PAD
from convs2s_jax.nn.types import Array, Tree
from convs2s_jax.nn.weight_norm import Normed


def check_params(params: Any, record: type) -> None:
    """Refuse parameters that are not a `record`, or whose kernels are still split for training."""
    if not isinstance(params, record):
        raise TypeError(f"params is a {type(params).__name__}: expected {record.__name__}, as `init` returns them")
    leaves = jax.tree.leaves(params, is_leaf=lambda x: isinstance(x, Normed))
    if any(isinstance(leaf, Normed) for leaf in leaves):
        raise ValueError("parameters are split into direction and length: call convs2s_jax.merge_kernels first")


def check_config(cfg: Any, record: type, *, name: str = "cfg") -> None:
    """Refuse what is no config of this class, such as parameters in its place; `name` is that of the argument."""
    if not isinstance(cfg, record):
        raise TypeError(f"{name} is a {type(cfg).__name__}: expected {record.__name__}")


def check_record(name: str, value: Any, made: Any, kind: str) -> None:
    """Refuse parameters or a cache of another kind than the config's: of another type than `made` returns.

    The type is the annotation of `made`; `Any`, or none, accepts all.

    Raises:
      TypeError: another type, or an annotation that is text or names several types, which cannot be compared.
    """
    annotated = getattr(made, "__annotations__", {}).get("return", Any)
    if annotated is Any:
        return
    record = types.NoneType if annotated is None else typing.get_origin(annotated) or annotated
    if not isinstance(record, type) or record is types.UnionType:
        raise TypeError(
            f"`{made.__name__}` of the kind '{kind}' is annotated to return {annotated!r}: name one class, not in "
            "quotes and without `from __future__ import annotations`, or leave the annotation out"
        )
    if not isinstance(value, record):
        raise TypeError(
            f"{name} is a {type(value).__name__}: the kind '{kind}' of cfg has a {record.__name__}; give what "
            f"`{made.__name__}` returns for this cfg"
        )


def check_tokens(name: str, tokens: Any) -> None:
    """Refuse anything but an array of integers with one row per sequence, and one without tokens."""
    if not isinstance(tokens, jax.Array | np.ndarray):
        raise TypeError(f"{name} is a {type(tokens).__name__}: expected an array of token ids, [rows, length]")
    if tokens.ndim != 2:
        raise ValueError(f"{name} has shape {tokens.shape}: expected token ids [rows, length], a row per sequence")
    if 0 in tokens.shape:
        raise ValueError(f"{name} has shape {tokens.shape}: there is no token; use one row of one token or more")
    if not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise TypeError(f"{name} has dtype {tokens.dtype}: token ids are integers, such as int32")
    explicit = [axis for axis in jax.typeof(tokens).sharding.spec if axis is not None]
    if explicit:  # axes of the types Auto and Manual are no part of an array's type
        raise ValueError(
            f"{name} is sharded over {explicit[0]!r}, a mesh axis of type Explicit: make the mesh with axis_types="
            "(jax.sharding.AxisType.Auto,) for each of its axes"
        )


def check_vocabulary(name: str, entries: Any) -> None:
    """Refuse what is no number of rows of a table of words, which has one for padding."""
    if not isinstance(entries, numbers.Integral) or entries <= PAD:
        raise ValueError(f"{name} is {entries}: expected a whole number above {PAD}, the id of padding")


def check_pairs(src: Any, tgt: Any) -> None:
    """Refuse what are no tokens, and sides with different numbers of rows."""
    check_tokens("src", src)
    check_tokens("tgt", tgt)
    if len(src) != len(tgt):
        raise ValueError(f"src has {len(src)} rows and tgt {len(tgt)}: a row is a sentence pair")


def check_memory(memory: Any, rows: int) -> None:
    """Refuse what is no memory, and a number of rows that is no multiple of its sentences.

    Args:
      memory: as an encoder returns it, or prepared: both have a mask [B, S].
      rows: N, of a cache or of tokens.
    """
    mask = getattr(memory, "mask", None)
    if mask is None:
        raise TypeError(f"memory is a {type(memory).__name__}: expected what `encode` or `prepare` returns")
    if rows < 1 or rows % len(mask):
        raise ValueError(f"{rows} rows for a memory of {len(mask)} sentences: use a multiple, W rows per sentence")


def check_cache(cache: Tree, rows: int) -> None:
    """Refuse a cache of another number of rows than the tokens that are read."""
    found = {leaf.shape[:1] for leaf in jax.tree.leaves(cache)}
    if found - {(rows,)}:
        (count, *_), *_ = found - {(rows,)}
        raise ValueError(
            f"tokens have {rows} rows and the cache has {count}: call `init_cache` with the rows of the tokens"
        )


def check_features(features: Array, channels: int) -> None:
    """Refuse features with another number of channels than the softmax layer reads."""
    if features.ndim < 1 or features.shape[-1] != channels:
        raise ValueError(
            f"features have shape {features.shape} and the softmax layer reads {channels} channels: hand over what "
            "`advance` returns"
        )
