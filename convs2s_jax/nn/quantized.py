"""Kernels quantised to 8-bit integers (int8), for decoding on devices with fast integer products.

This is dynamic quantisation with a scale for each row of the activations and for each output of the kernel
(vector-wise, Dettmers et al. 2022, arXiv:2208.07339, section 3.1), without special treatment of outliers.

A kernel w [..., D] becomes integers q and a scale for each of its outputs, w = q s to the nearest step. The rows of the
other factor are rounded in the same way when they are multiplied, each with its own scale r:

    x w  ~  (p q) r s,    p = round(x / r),    r = max |x| / 127,    s_d = max |w_d| / 127

The sums p q are exact in 32 bits: 127^2 K C is below 2^31 up to K C = 133,000 inputs.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from convs2s_jax.nn import struct
from convs2s_jax.nn.types import Array, accumulation_dtype

LARGEST = 127
"""Integers are symmetric: -128 is not used."""


@struct.dataclass
class Quantized:
    """A quantised kernel, used in place of an array of floats.

    Attributes:
      values: [..., D], int8.
      scale: [D], the step size of each output in float32.
      dtype: dtype of the activations that it is multiplied with, and of the results.
    """

    values: Array
    scale: Array
    dtype: Any = struct.field(pytree_node=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the kernel."""
        return self.values.shape

    def astype(self, dtype: DTypeLike) -> "Quantized":
        """Return the same integers for activations of this dtype."""
        return dataclasses.replace(self, dtype=jnp.dtype(dtype))

    def reshape(self, inputs: int, outputs: int) -> "Quantized":
        """Return the kernel [C, D] of these sizes, one of which may be -1."""
        return dataclasses.replace(self, values=self.values.reshape(inputs, outputs))

    def columns(self, numbers: Array) -> "Quantized":
        """Restrict the kernel to these outputs."""
        return dataclasses.replace(self, values=self.values[..., numbers], scale=self.scale[numbers])


def quantize(w: Array) -> Quantized:
    """Quantise a kernel [..., D] to 8-bit integers, each output with the finest step that covers its largest weight."""
    values, scale = _rounded(w.astype(jnp.float32), axes=tuple(range(w.ndim - 1)))
    return Quantized(values=values, scale=scale.reshape(-1), dtype=w.dtype)


def product(x: Array, w: Quantized, dtype: DTypeLike | None = None) -> Array:
    """Multiply x w over the last axis of x and all axes of w but the last, of total size X: [..., X] to [..., D].

    Args:
      x: rows, with any leading axes.
      w: a kernel.
      dtype: dtype of the result; None for that of the kernel.
    """
    rows, steps = _rounded(x.astype(accumulation_dtype(x.dtype)), axes=(-1,))
    sums = jnp.einsum("...X,XD->...D", rows, w.values.reshape(-1, w.shape[-1]), preferred_element_type=jnp.int32)
    scale = jax.lax.expand_dims(w.scale.astype(steps.dtype), range(x.ndim - 1))
    return (sums.astype(steps.dtype) * steps * scale).astype(dtype or w.dtype)


def _rounded(x: Array, axes: tuple[int, ...]) -> tuple[Array, Array]:
    """Round to 8-bit integers with one step size along these axes; return both. The step size of zeros is zero."""
    step = jnp.max(jnp.abs(x), axis=axes, keepdims=True) / LARGEST
    values = jnp.round(x / jnp.where(step == 0, 1, step))
    return values.astype(jnp.int8), step
