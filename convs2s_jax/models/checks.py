"""Argument checks for model functions, which raise a one-sentence error instead of one from deep inside JAX.

They only use types, shapes and dtypes, so they cost nothing in a compiled function.
"""

import functools
import math
import numbers
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from convs2s_jax.core.tokens import SPECIAL
from convs2s_jax.models.kinds import Memory
from convs2s_jax.nn.embedding import Embedding
from convs2s_jax.nn.quantized import is_quantized
from convs2s_jax.nn.sharding import any_sharded
from convs2s_jax.nn.trees import path_of
from convs2s_jax.nn.types import Array, Tree
from convs2s_jax.nn.weight_norm import Normed


def check_params(params: Any, record: type) -> None:
    """Reject parameters that are not a `record`, whose kernels are still split for training, or of several models."""
    if not isinstance(params, record):
        raise TypeError(f"params is a {type(params).__name__}: expected {record.__name__}, as `init` returns them")
    for node in jax.tree.leaves(params, is_leaf=lambda x: isinstance(x, Normed | Embedding)):
        if isinstance(node, Normed):
            raise ValueError("parameters are split into direction and length: call convs2s_jax.merge_kernels first")
        if isinstance(node, Embedding) and getattr(node.table, "ndim", 2) > 2:
            raise ValueError(
                f"params are those of several models, with an embedding table of shape {node.table.shape} in place of "
                "[V, E]: map the function over them with jax.vmap, or pass the parameters of one model"
            )
    for leaf in jax.tree.leaves(params):
        check_axes("params", leaf)


def check_config(cfg: Any, record: type, *, name: str = "cfg") -> None:
    """Reject anything but a config of this class, such as parameters in its place; `name` is the argument's name."""
    check_static(name, cfg)
    if not isinstance(cfg, record):
        raise TypeError(f"{name} is a {type(cfg).__name__}: expected {record.__name__}")


def check_static(name: str, value: Any) -> None:
    """Reject a traced value. JAX traces a config with a field `dtype` too, as if it were an array."""
    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"{name} is traced, but has to be static: pass static_argnames={name!r} to jax.jit, or close over it, as "
            f"in jax.jit(lambda params: f(params, {name}))"
        )


def check_shapes(
    name: str, params: Any, init: Callable[..., Any], cfg: Hashable, dim: int, *, precomputed: bool = False
) -> None:
    """Reject parameters whose sizes are not those that the `init` of their kind returns for this config.

    An array may have more axes, as kernels in groups of channels have on a mesh with `tensor`. Shards are not checked,
    those that the layers gather and those within `jax.shard_map`.

    Args:
      name: of the parameters, for the message.
      params: parameters of one kind of encoder, decoder or features.
      init: the `init` of this kind.
      cfg: config of this kind.
      dim: embedding size E of the whole model.
      precomputed: whether the parameters may have arrays besides those that `init` returns.
    """
    if not (any_sharded(params) or jax.sharding.get_abstract_mesh().manual_axes):
        found = jax.tree_util.tree_leaves_with_path(params, is_leaf=is_quantized)
        vocabulary = len(params.embedding.table) if found else 0
        _check_shapes(name, tuple((path, leaf.shape) for path, leaf in found), init, cfg, vocabulary, dim, precomputed)


@functools.lru_cache
def _check_shapes(
    name: str,
    found: tuple[tuple[Any, tuple[int, ...]], ...],
    init: Callable[..., Any],
    cfg: Hashable,
    vocabulary: int,
    dim: int,
    precomputed: bool,
) -> None:
    """Compare paths and sizes with those that `init` returns. What was accepted is remembered, errors are not."""
    made = jax.eval_shape(lambda: init(jax.random.key(0), cfg, vocabulary, dim, 0.0))
    expected = {path: leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(made)}
    given = dict(found)
    for path in expected if precomputed else (*expected, *given):
        if path in expected and path in given and _fits(given[path], expected[path]):
            continue
        has, needs = (f"shape {of[path]}" if path in of else "no array" for of in (given, expected))
        raise ValueError(f"{name} has {has} at {path_of(path)} and cfg needs {needs}: use the cfg passed to `init`")


def _fits(given: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    """Whether a shape is the expected one, or has more axes and the same size."""
    return given == expected or (len(given) > len(expected) and math.prod(given) == math.prod(expected))


def check_tokens(name: str, tokens: Any) -> None:
    """Reject anything but a non-empty array of integers with one row per sequence."""
    if not isinstance(tokens, jax.Array | np.ndarray):
        raise TypeError(f"{name} is a {type(tokens).__name__}: expected an array of token ids, [rows, length]")
    if tokens.ndim != 2:
        raise ValueError(f"{name} has shape {tokens.shape}: expected token ids [rows, length], a row per sequence")
    if 0 in tokens.shape:
        raise ValueError(f"{name} has shape {tokens.shape}: there are no tokens; use at least one row of one token")
    if not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise TypeError(f"{name} has dtype {tokens.dtype}: token ids are integers, such as int32")
    check_axes(name, tokens)


def check_axes(name: str, array: Any) -> None:
    """Reject an array that is sharded over mesh axes of type Explicit. Axes of other types are not in its type."""
    explicit = [axis for axis in jax.typeof(array).sharding.spec if axis is not None]
    if explicit:
        raise ValueError(
            f"{name} is sharded over {explicit[0]!r}, a mesh axis of type Explicit: create the mesh with axis_types="
            "(jax.sharding.AxisType.Auto,) for each of its axes"
        )


def check_vocabulary(name: str, entries: Any) -> None:
    """Reject anything but a vocabulary size: an integer that leaves room for the special ids."""
    check_static(name, entries)
    if not isinstance(entries, numbers.Integral) or entries < len(SPECIAL):
        raise ValueError(
            f"{name} is {entries!r}: expected an integer of at least {len(SPECIAL)}, the number of special ids"
        )


def check_pairs(src: Any, tgt: Any) -> None:
    """Reject anything but token arrays with the same number of rows on both sides."""
    check_tokens("src", src)
    check_tokens("tgt", tgt)
    if len(src) != len(tgt):
        raise ValueError(f"src has {len(src)} rows and tgt has {len(tgt)}: each row is a sentence pair")


def check_memory(memory: Any, rows: int) -> None:
    """Reject anything but a memory, and a number of rows N that is not a multiple of its sentences."""
    check_static("rows", rows)
    if not isinstance(memory, Memory):
        raise TypeError(f"memory is a {type(memory).__name__}: expected what `encode` or `prepare` returns")
    if rows < 1 or rows % len(memory.mask):
        raise ValueError(
            f"{rows} rows for a memory of {len(memory.mask)} sentences: use a multiple, W rows per sentence"
        )


def check_cache(cache: Tree, expected: Callable[[], Tree], rows: int) -> None:
    """Reject a cache that has other arrays than `expected` returns, the `init_cache` of the model for these rows."""
    found = {leaf.shape[:1] for leaf in jax.tree.leaves(cache)}
    if found - {(rows,)}:
        (count, *_), *_ = found - {(rows,)}
        raise ValueError(
            f"tokens have {rows} rows and the cache has {count}: call `init_cache` with the rows of the tokens"
        )
    if _shapes(cache) != _shapes(jax.eval_shape(expected)):
        raise ValueError("cache does not belong to this model: pass what `init_cache` returns for these params and cfg")


def _shapes(tree: Tree) -> Tree:
    return jax.tree.structure(tree), [leaf.shape for leaf in jax.tree.leaves(tree)]


def check_features(features: Array, channels: int) -> None:
    """Reject features whose number of channels is not the one that the softmax layer reads."""
    if features.ndim < 1 or features.shape[-1] != channels:
        raise ValueError(
            f"features have shape {features.shape} and the softmax layer reads {channels} channels: pass what "
            "`advance` returns"
        )


def check_labels(labels: Any) -> None:
    """Reject anything but an integer above 0."""
    check_static("labels", labels)
    if not isinstance(labels, numbers.Integral) or labels < 1:
        raise ValueError(f"labels is {labels!r}: expected the number of labels, an integer above 0")
