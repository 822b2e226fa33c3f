"""Loops over time whose gradients are accumulated in float32 or better."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from convs2s_jax.nn.types import accumulation_dtype

ParamsT = TypeVar("ParamsT")
CarryT = TypeVar("CarryT")


def loop_invariant(arrays: ParamsT) -> Callable[[], ParamsT]:
    """Keep arrays that all steps of a loop read in float32 or better, so that their gradients accumulate in it.

    Returns:
      A function that returns the arrays in their own dtype, to be called within the loop.
    """
    held = jax.tree.map(
        lambda x: x.astype(accumulation_dtype(x.dtype)) if jnp.issubdtype(x.dtype, jnp.floating) else x, arrays
    )
    return lambda: jax.tree.map(lambda x, like: x.astype(like.dtype), held, arrays)


def scan(
    body: Callable[[ParamsT, CarryT, Any], tuple[CarryT, Any]],
    params: ParamsT,
    carry: CarryT,
    items: Any,
    *,
    reverse: bool = False,
) -> tuple[CarryT, Any]:
    """Like `jax.lax.scan`, but accumulate the gradients of loop-invariant arrays in float32 or better.

    Within a `jax.shard_map` that checks which arrays vary (`check_vma`), the initial carry can be constants.

    Args:
      body: (parameters, carry, item) -> the next carry and an output.
      params: pytree of arrays that all steps read.
      carry: initial carry.
      items: pytree of arrays [T, ...].
      reverse: run from the last item to the first.
    """
    read = loop_invariant(params)
    carry = _varying(carry, (params, items))
    return jax.lax.scan(lambda carry, item: body(read(), carry, item), carry, items, reverse=reverse)


def _varying(carry: CarryT, others: Any) -> CarryT:
    """Mark the carry as varying over every axis of a `jax.shard_map` that it or `others` vary over, as after a step."""

    def axes(x: Any) -> set[str]:
        return set(jax.typeof(x).manual_axis_type.varying)

    together = set[str]().union(*map(axes, jax.tree.leaves((carry, others))))
    made: CarryT = jax.tree.map(lambda x: jax.lax.pcast(x, tuple(sorted(together - axes(x))), to="varying"), carry)
    return made
