"""Linear maps, and the dataclass of a kernel and a bias that they share with convolutions."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from convs2s_jax.nn import cpu, struct
from convs2s_jax.nn.gradient import add_broadcast
from convs2s_jax.nn.quantized import Quantized, product
from convs2s_jax.nn.sharding import gathers_kernel
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


def init(key: Key, inputs: int, outputs: int, *, keep: float = 1.0) -> Affine:
    """Initialise a linear map with w ~ N(0, sqrt(keep / C)) and b = 0 (section 3.5).

    Args:
      key: random key for the kernel.
      inputs: number of inputs C.
      outputs: number of outputs D.
      keep: probability that dropout keeps an input; the paper's p.
    """
    std = (keep / inputs) ** 0.5
    return Affine(w=std * jax.random.normal(key, (inputs, outputs)), b=jnp.zeros(outputs))


def xavier(key: Key, inputs: int, outputs: int, *, gain: float = 1.0) -> Affine:
    """Initialise a linear map with w ~ U(-r, r), r = gain sqrt(6 / (C + D)), b = 0 (Glorot and Bengio 2010, eq. 16).

    Args:
      key: random key for the kernel.
      inputs: number of inputs C.
      outputs: number of outputs D.
      gain: factor on the standard deviation.
    """
    bound = gain * (6.0 / (inputs + outputs)) ** 0.5
    return Affine(w=jax.random.uniform(key, (inputs, outputs), minval=-bound, maxval=bound), b=jnp.zeros(outputs))


@gathers_kernel
def linear(params: Affine, x: Array) -> Array:
    """Apply y = x w + b over the last axis: [..., C] -> [..., D], in the dtype of w."""
    return add_bias(matmul(x, params.w), params.b)


def matmul(x: Array, w: Any, dtype: DTypeLike | None = None) -> Array:
    """Multiply x w over the last axis: [..., C] and [C, D] -> [..., D].

    Args:
      x: converted to the dtype of w.
      w: an array, or integers (`Quantized`).
      dtype: dtype of the sums and of the result; None for that of w.
    """
    if isinstance(w, Quantized):
        return product(x, w, dtype)
    x = x.astype(w.dtype)
    if dtype is not None:
        return jnp.einsum("...C,CD->...D", x, w, preferred_element_type=dtype)
    if x.ndim > 2 and w.dtype == jnp.bfloat16:
        return cpu.matmul(x, w)
    # all axes of x but the last are one, so that this and its gradient with respect to w are products of two matrices
    return (x.reshape(-1, x.shape[-1]) @ w).reshape(*x.shape[:-1], w.shape[-1])


def add_bias(y: Array, b: Array) -> Array:
    """Add y + b over the last axis: [..., D] and [D] -> [..., D], in the dtype of y."""
    return add_broadcast(y, expand_leading(b, y.ndim))


def expand_leading(x: Array, ndim: int) -> Array:
    """Give a vector [D] leading axes of length 1, so that it fits to the last axis of an array with `ndim` axes."""
    return jax.lax.expand_dims(x, range(ndim - 1))
