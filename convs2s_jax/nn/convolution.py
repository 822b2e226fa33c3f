"""Convolutions over time (section 3.2): padding for all kinds, and dense convolutions.

A convolution here reads an input that is already padded, and its output is shorter by the padding (a "valid"
convolution). `centred` and `causal` add the padding. Encoders see both sides, decoders only the past. Tap j reads
position t + j of the padded input (a cross-correlation, as in other frameworks).

`dense` has three forms, equal up to rounding (`DENSE_FORMS`). Depthwise convolutions are in `nn.depthwise`.
"""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from convs2s_jax.nn import cpu
from convs2s_jax.nn.affine import Affine, add_bias, matmul
from convs2s_jax.nn.quantized import Quantized
from convs2s_jax.nn.sharding import gathers_kernel
from convs2s_jax.nn.types import Array, Key

DenseForm = Literal["auto", "xla", "products", "winograd"]

Valid = Callable[[Array], Array]
"""A convolution of a padded input, [B, T + R, C] -> [B, T, D]. An output sees R + 1 positions; R is the reach."""


def centred(convolve: Valid, x: Array, reach: int) -> Array:
    """Apply a convolution that keeps the length (section 3.2), with R // 2 zeros on the left, R - R // 2 on the right.

    For odd K and R = K - 1 both sides get K // 2 zeros, as in the paper. For even K the split is the same as fairseq's.

    Args:
      convolve: a valid convolution, such as `partial(dense, params)`.
      x: [B, S, C].
      reach: R = (K - 1) r for width K and dilation r.

    Returns:
      [B, S, D].
    """
    return convolve(jnp.pad(x, ((0, 0), (reach // 2, reach - reach // 2), (0, 0))))


def causal(convolve: Valid, history: Array, x: Array) -> tuple[Array, Array]:
    """Apply a convolution that only sees the past: it reads [history; x] (section 3.2).

    Args:
      convolve: a valid convolution, such as `partial(dense, params)`.
      history: [B, R, C], the inputs before x, oldest first; zeros at the start of the sequence.
      x: [B, T, C], any T >= 1.

    Returns:
      Output [B, T, D] and the history for the inputs after x.
    """
    padded = jnp.concatenate([history, x], axis=1)
    return convolve(padded), padded[:, x.shape[1] :]


def glu(x: Array) -> Array:
    """Gated linear unit v([A B]) = A * sigmoid(B) (section 3.2; Dauphin et al. 2016).

    Args:
      x: [..., 2C], A in the first C channels, the gate B in the last C.

    Returns:
      [..., C], in the dtype of x.
    """
    a, b = jnp.split(x, 2, axis=-1)
    return a * jax.nn.sigmoid(b)


def init(key: Key, width: int, inputs: int, outputs: int, *, keep: float = 1.0) -> Affine:
    """Initialise a convolution that feeds a GLU: w ~ N(0, sqrt(4 keep / (K C))), b = 0 (section 3.5).

    The factor 4 compensates for the gate, which passes a quarter of the variance (appendix A of the paper).

    Args:
      key: random key for the kernel.
      width: kernel width K.
      inputs: number of input channels C.
      outputs: number of output channels D, twice those of the GLU.
      keep: probability that dropout keeps an input.
    """
    std = (4 * keep / (width * inputs)) ** 0.5
    return Affine(w=std * jax.random.normal(key, (width, inputs, outputs)), b=jnp.zeros(outputs))


@gathers_kernel
def dense(params: Affine, x: Array, form: DenseForm = "auto") -> Array:
    """Dense convolution y_t = b + sum_j x_{t+j} w_j, in which every output channel sees every input channel.

    In all forms, a single output position, as in decoding, is one matrix product. With an integer kernel, so are all
    positions together.

    Args:
      params: w [K, C, D], b [D].
      x: [B, T + K - 1, C].
      form: how it is computed, one of `DENSE_FORMS`.

    Returns:
      [B, T, D], in the dtype of w.
    """
    if form not in DENSE_FORMS:
        raise ValueError(f"form is {form!r}: use one of {', '.join(DENSE_FORMS)}")
    width, inputs, outputs = params.w.shape
    x = x.astype(params.w.dtype)
    if x.shape[1] == width:
        y = matmul(x.reshape(x.shape[0], 1, width * inputs), params.w.reshape(-1, outputs))
    elif isinstance(params.w, Quantized):
        y = matmul(cpu.windows(x, width), params.w.reshape(-1, outputs))
    elif width == 1:
        y = matmul(x, params.w[0])
    else:
        y = DENSE_FORMS[form](params.w, x)
    return add_bias(y, params.b)


def xla(w: Array, x: Array) -> Array:
    """XLA's convolution of x [B, T + K - 1, C] with w [K, C, D]: [B, T, D]."""
    return jax.lax.conv_general_dilated(x, w, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))


DENSE_FORMS: dict[str, Callable[[Array, Array], Array]] = {
    "auto": xla,
    "xla": xla,
    "products": cpu.convolution,
    "winograd": cpu.winograd,
}
"""Training may replace "auto" (`ExecutionConfig`). At width 3 on CPU, "xla" and "products" are about equally fast, but
the gradient of XLA's convolution is 20 times slower inside a loop there. It is silently wrong if batch and kernel are
sharded over a mesh of three axes. "winograd" needs half as many multiplications and has ten times the rounding error
(docs/decisions.md)."""
