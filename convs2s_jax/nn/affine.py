"""Linear maps, and the dataclasses of kernels and biases that they share with convolutions."""

from typing import Any

import jax
import jax.numpy as jnp

from convs2s_jax.nn import draws, struct
from convs2s_jax.nn.gradient import add_broadcast, materialise_on_cpu
from convs2s_jax.nn.quantized import Quantized, product
from convs2s_jax.nn.types import Array, Key


@struct.dataclass
class Affine:
    """Parameters of y = x w + b.

    Attributes:
      w: kernel, [C, D] of a linear map or [K, C, D] of a convolution. During training it is a `weight_norm.Normed`
        (direction and length). For decoding it can be a `quantized.Quantized` (8-bit integers).
      b: bias [D].
    """

    w: Any
    b: Array


@struct.dataclass
class Kernel:
    """A kernel without a bias.

    Attributes:
      w: [K, C] of a depthwise convolution; during training a `weight_norm.Normed`, as in `Affine`.
    """

    w: Any


def init(key: Key, inputs: int, outputs: int, *, keep: float = 1.0) -> Affine:
    """Initialise a linear map with w ~ N(0, sqrt(keep / C)) and b = 0 (section 3.5).

    Args:
      key: random key for the kernel.
      inputs: number of inputs C.
      outputs: number of outputs D.
      keep: probability that dropout keeps an input; the paper's p.
    """
    std = (keep / inputs) ** 0.5
    return Affine(w=std * draws.normal(key, (inputs, outputs)), b=jnp.zeros(outputs))


def xavier(key: Key, inputs: int, outputs: int, *, gain: float = 1.0) -> Affine:
    """Initialise a linear map with w ~ U(-r, r), r = gain sqrt(6 / (C + D)), b = 0 (Glorot and Bengio 2010, eq. 16).

    Args:
      key: random key for the kernel.
      inputs: number of inputs C.
      outputs: number of outputs D.
      gain: factor on the standard deviation.
    """
    bound = gain * (6.0 / (inputs + outputs)) ** 0.5
    return Affine(w=draws.uniform(key, (inputs, outputs), bound), b=jnp.zeros(outputs))


def linear(params: Affine, x: Array) -> Array:
    """Apply y = x w + b over the last axis: [..., C] -> [..., D], in the dtype of w."""
    return add_bias(matmul(x, params.w), params.b)


def matmul(x: Array, w: Any) -> Array:
    """Multiply x w over the last axis: [..., C] and [C, D] -> [..., D], in the dtype of w.

    All axes of x but the last are flattened into one, so that it is a product of two matrices. So is its gradient with
    respect to w, x' dy, except in bfloat16, where XLA's CPU compiler computes `tangent_product` faster (decision 0046).
    """
    x = x.astype(w.dtype)
    several = x.ndim > 2 and w.dtype == jnp.bfloat16 and not isinstance(w, Quantized)
    return _matmul_nd(x, w) if several else _matmul_2d(x, w)


def tangent_product(x: Array, dw: Array, precision: str | None = None) -> Array:
    """Multiply x dw over the last axis, [..., C] and [C, D] -> [..., D]: the derivative of y = x w in the direction dw.

    In reverse mode it becomes the gradient of the kernel: the product dy' x over all axes but the last, then a
    transposition. XLA's CPU compiler would fuse the two and choose a slow layout, so they are kept apart there.

    Args:
      x: an array with at least two axes.
      dw: the tangent of a kernel.
      precision: precision of the product, as in `jax.lax.Precision`.
    """
    return jnp.einsum("...C,DC->...D", x, materialise_on_cpu(dw.T), precision=precision)


def _matmul_2d(x: Array, w: Any) -> Array:
    """Multiply x w as two matrices. All axes of x but the last are flattened into one."""
    rows = x.reshape(-1, x.shape[-1])
    y = product(rows, w) if isinstance(w, Quantized) else rows @ w
    return y.reshape(*x.shape[:-1], w.shape[-1])


@jax.custom_jvp
def _matmul_nd(x: Array, w: Array) -> Array:
    """Multiply x w, with `tangent_product` as the derivative with respect to w."""
    return _matmul_2d(x, w)


@_matmul_nd.defjvp
def _tangent(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    """Product rule: dy = dx w + x dw."""
    (x, w), (dx, dw) = primals, tangents
    return _matmul_2d(x, w), _matmul_2d(dx, w) + tangent_product(x, dw)


def add_bias(y: Array, b: Array) -> Array:
    """Add y + b over the last axis: [..., D] and [D] -> [..., D], in the dtype of y."""
    return add_broadcast(y, expand_leading(b, y.ndim))


def expand_leading(x: Array, ndim: int) -> Array:
    """Give a vector [D] leading axes of length 1, so that it fits to the last axis of an array with `ndim` axes."""
    return jax.lax.expand_dims(x, range(ndim - 1))
