"""Scaling of gradients (section 3.4)."""

from functools import partial

import jax

from convs2s_jax.nn.types import Array


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
    """x, whose gradient is computed as an array of its own before it is used.

    A linear map uses it three times. XLA would compute it anew in some of these uses, with its masks of dropout.
    """
    return x


@once.defjvp
def _once_tangent(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    return primals[0], jax.lax.optimization_barrier(tangents[0])
