"""Gradients: their scale (section 3.4), the dtype of sums over positions, and what is computed before it is used."""

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
    """Return x; its derivative is multiplied by `scale`.

    The encoder of a model with n attention layers receives n gradients. The paper divides their sum by n, fairseq by
    2 n, since both keys and values carry a gradient.

    Reverse mode (`jax.grad`) multiplies the cotangent, forward mode (`jax.jvp`) the tangent, so that both agree. The
    result is not the derivative of any function of x: with `scale` other than 1 a Hessian need not be symmetric.

    Args:
      x: of any shape.
      scale: static.
    """
    return x


@scale_gradient.defjvp
def _scale_tangent(scale: float, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return primals[0], tangents[0] * scale


@jax.custom_jvp
def once(x: Array) -> Array:
    """Identity whose gradient XLA's CPU compiler materialises once instead of recomputing it in each use.

    A linear map uses this gradient three times; dropout masks would be recomputed with it.
    """
    return x


@once.defjvp
def _once_tangent(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return primals[0], apart_on_cpu(tangents[0])


@jax.jit  # so that it is traced once for each shape
def apart_on_cpu(x: Array) -> Array:
    """x, which XLA's CPU compiler computes as an array of its own: it fuses nothing that makes x with what reads it.

    Its other compilers know better than a barrier what to fuse, and need less memory traffic without one
    (docs/performance-log.md).
    """
    apart: Array = jax.lax.platform_dependent(x, cpu=jax.lax.optimization_barrier, default=lambda x: x)
    return apart


def add_broadcast(y: Array, x: Array) -> Array:
    """Sum y + x in the dtype of y, where x has length 1 along the axes on which it is broadcast.

    The gradient of x is a sum over these axes, which is taken in float32 or better. JAX sums in the dtype of the
    summands, and XLA's CPU compiler rounds after each one: in bfloat16 a sum of equal numbers stops at 256 of them.

    Args:
      y: of any shape.
      x: of as many axes.
    """
    dtype = accumulation_dtype(y.dtype)
    return (y.astype(dtype) + x.astype(dtype)).astype(y.dtype)


def broadcast(x: Array, shape: tuple[int, ...]) -> Array:
    """`jnp.broadcast_to`, whose gradient is summed in float32 or better, as that of `add_broadcast`."""
    return jnp.broadcast_to(x.astype(accumulation_dtype(x.dtype)), shape).astype(x.dtype)


def loop_invariant(arrays: ParamsT) -> Callable[[], ParamsT]:
    """Arrays that all steps of a loop read, held in float32 or better, in which their gradients are accumulated.

    Returns:
      A function that gives the arrays in their own dtype, to be called within the loop.
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
    """`jax.lax.scan` that accumulates the gradients of loop-invariant arrays in float32 or better.

    Within a `jax.shard_map` that checks which arrays vary (`check_vma`), the carry may start with constants.

    Args:
      body: (parameters, carry, item) -> the next carry and an output.
      params: pytree of arrays that all steps read.
      carry: before the first step.
      items: pytree of arrays [T, ...].
      reverse: from the last item to the first.
    """
    read = loop_invariant(params)
    carry = _varying(carry, (params, items))
    return jax.lax.scan(lambda carry, item: body(read(), carry, item), carry, items, reverse=reverse)


def _varying(carry: CarryT, others: Any) -> CarryT:
    """The carry, marked as varying over every axis of a `jax.shard_map` that it or `others` vary over.

    Its type must be that of the carry after a step. Outside of such a function nothing is changed.
    """

    def axes(x: Any) -> frozenset[str]:
        found: frozenset[str] = jax.typeof(x).manual_axis_type.varying
        return found

    together = frozenset[str]().union(*map(axes, jax.tree.leaves((carry, others))))
    made: CarryT = jax.tree.map(lambda x: jax.lax.pcast(x, tuple(sorted(together - axes(x))), to="varying"), carry)
    return made
