"""Gradients: scaling (section 3.4), and accumulation in float32 or better."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from convs2s_jax.nn.types import Array, accumulation_dtype

ParamsT = TypeVar("ParamsT")
CarryT = TypeVar("CarryT")


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def scale_gradient(x: Array, scale: float) -> Array:  # noqa: ARG001 - the rule below uses it
    """Return x, with its derivative multiplied by `scale`.

    The encoder of a model with n attention layers receives n gradients. The paper divides their sum by n, fairseq by
    2 n, since both keys and values carry a gradient.

    Reverse mode (`jax.grad`) multiplies the cotangent, forward mode (`jax.jvp`) the tangent, so that both agree. The
    result is not the derivative of any function of x. With `scale` other than 1, a Hessian need not be symmetric.

    Args:
      x: array of any shape.
      scale: factor on the derivative, a static number.
    """
    return x


@scale_gradient.defjvp
def _scale_tangent(scale: float, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return primals[0], tangents[0] * scale


def add_broadcast(y: Array, x: Array) -> Array:
    """Add y + x in the dtype of y, where x has length 1 along the axes on which it is broadcast.

    The gradient of x is a sum over these axes, accumulated in float32 or better. JAX sums in the dtype of the summands,
    and XLA's CPU compiler rounds after each one, so a bfloat16 sum of equal numbers stops growing after 256 of them.

    Args:
      y: array of any shape.
      x: array with the same number of axes.
    """
    dtype = accumulation_dtype(y.dtype)
    return (y.astype(dtype) + x.astype(dtype)).astype(y.dtype)


def broadcast(x: Array, shape: tuple[int, ...]) -> Array:
    """Like `jnp.broadcast_to`, but its gradient is summed in float32 or better, as in `add_broadcast`."""
    return jnp.broadcast_to(x.astype(accumulation_dtype(x.dtype)), shape).astype(x.dtype)


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
