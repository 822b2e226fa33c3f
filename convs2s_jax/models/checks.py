"""Argument checks for model functions, which raise a one-sentence error instead of one from deep inside JAX.

They only use types, shapes and dtypes, so they cost nothing in a compiled function.
"""

import functools
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from convs2s_jax.nn.quantized import Quantized
from convs2s_jax.nn.sharding import ShardedKernel
from convs2s_jax.nn.trees import nodes, path_of
from convs2s_jax.nn.weight_norm import Normed


def check_params(params: Any, record: type) -> None:
    """Reject parameters that are not a `record`, or whose kernels are still split for training."""
    if not isinstance(params, record):
        raise TypeError(f"params is a {type(params).__name__}: expected {record.__name__}, as `init` returns them")
    if nodes(params, Normed):
        raise ValueError("parameters are split into direction and length: call convs2s_jax.merge_kernels first")


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

    Within `jax.shard_map` they are not checked, since arrays are shards there.

    Args:
      name: of the parameters, for the message.
      params: parameters of one kind of encoder, decoder or features.
      init: the `init` of this kind.
      cfg: config of this kind.
      dim: embedding size E of the whole model.
      precomputed: whether the parameters may have arrays besides those that `init` returns.
    """
    leaves = jax.tree_util.tree_leaves_with_path(params, is_leaf=lambda x: isinstance(x, Quantized | ShardedKernel))
    if not leaves or jax.sharding.get_abstract_mesh().manual_axes:
        return
    expected = _shapes(init, cfg, len(params.embedding.table), dim)
    given = {path: leaf.shape for path, leaf in leaves}
    for path in expected if precomputed else expected | given:
        if given.get(path) != expected.get(path):
            has, needs = (f"shape {of[path]}" if path in of else "no array" for of in (given, expected))
            raise ValueError(f"{name} has {has} at {path_of(path)} and cfg needs {needs}: use the cfg passed to `init`")


@functools.lru_cache
def _shapes(init: Callable[..., Any], cfg: Hashable, vocabulary: int, dim: int) -> dict[Any, tuple[int, ...]]:
    made = jax.eval_shape(lambda: init(jax.random.key(0), cfg, vocabulary, dim, 0.0))
    return {path: leaf.shape for path, leaf in jax.tree_util.tree_leaves_with_path(made)}


def check_tokens(name: str, tokens: Any) -> None:
    """Reject anything but an array of integers with one row per sequence."""
    if not isinstance(tokens, jax.Array | np.ndarray):
        raise TypeError(f"{name} is a {type(tokens).__name__}: expected an array of token ids, [rows, length]")
    if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise ValueError(
            f"{name} has shape {tokens.shape} and dtype {tokens.dtype}: expected token ids [rows, length], integers "
            "with a row per sequence"
        )


def check_pairs(src: Any, tgt: Any) -> None:
    """Reject anything but token arrays with the same number of rows on both sides."""
    check_tokens("src", src)
    check_tokens("tgt", tgt)
    if len(src) != len(tgt):
        raise ValueError(f"src has {len(src)} rows and tgt has {len(tgt)}: each row is a sentence pair")


def check_rows(rows: int, sentences: int) -> None:
    """Reject a number of rows N that is not a multiple of the B sentences of a memory."""
    if rows < 1 or rows % sentences:
        raise ValueError(f"{rows} rows for a memory of {sentences} sentences: use a multiple, W rows per sentence")
