"""Scaling of gradients (section 3.4)."""

from functools import partial

import jax

from convs2s_jax.nn.types import Array


@partial(jax.custom_vjp, nondiff_argnums=(1,))
def scale_gradient(x: Array, scale: float) -> Array:
    """Return x; its gradient is multiplied by `scale`.

    The encoder of a model with n attentions receives n gradients; the paper scales it by their number, fairseq by twice
    that number, since keys and values both carry it.
    """
    del scale
    return x


def _forward(x: Array, scale: float) -> tuple[Array, None]:
    del scale
    return x, None


def _backward(scale: float, _: None, dy: Array) -> tuple[Array]:
    return (dy * scale,)


scale_gradient.defvjp(_forward, _backward)
