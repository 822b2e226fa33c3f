"""Gradients: scaling (section 3.4), and sums in float32 or better."""

from functools import partial
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from convs2s_jax.nn.types import Array, Tree, accumulation_dtype

_FORWARD_ONLY: Any = Primitive("forward_only")
_FORWARD_ONLY.def_impl(lambda x, **_: x)
_FORWARD_ONLY.def_abstract_eval(lambda x, **_: x)


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


def forward_only(tree: Tree, message: str) -> Tree:
    """Return the tree. Reverse mode through its floats raises a ValueError with this message; forward mode works.

    It goes around what JAX can only differentiate forwards, whose own error knows nothing of what the user called.
    """

    def each(x: Array) -> Any:
        return _FORWARD_ONLY.bind(x, message=message) if jnp.issubdtype(x.dtype, jnp.floating) else x

    return jax.tree.map(each, tree)


def _no_transpose(_cotangent: Any, _x: Any, *, message: str) -> NoReturn:
    raise ValueError(message)


ad.deflinear2(_FORWARD_ONLY, _no_transpose)
batching.defvectorized(_FORWARD_ONLY)
mlir.register_lowering(_FORWARD_ONLY, lambda _context, x, **_: [x])
