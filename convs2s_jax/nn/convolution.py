"""Convolutions over time (section 3.2). A convolution here is always a valid one: who calls it adds the zeros.

Tap j of the kernel reads position t + j of the padded input (a cross-correlation, as in every framework).
"""

import jax
import jax.numpy as jnp

from convs2s_jax.nn.affine import Affine, bias
from convs2s_jax.nn.types import Array, Key


def init(key: Key, width: int, inputs: int, outputs: int, *, keep: float = 1.0) -> Affine:
    """Convolution that feeds a GLU: w ~ N(0, sqrt(4 keep / (K C))), b = 0 (section 3.5).

    The factor 4 makes up for the gate, which passes a quarter of the variance (appendix A of the paper).

    Args:
      key: of the kernel.
      width: K.
      inputs: C.
      outputs: D, twice the channels that leave the GLU.
      keep: share of the inputs that dropout retains.
    """
    std = (4 * keep / (width * inputs)) ** 0.5
    return Affine(w=std * jax.random.normal(key, (width, inputs, outputs)), b=jnp.zeros(outputs))


def valid(params: Affine, x: Array) -> Array:
    """y_t = b + sum_j x_{t+j} w_j.

    One output position, as in decoding, is one matrix product: a convolution inside a loop is slow on CPU. For longer
    inputs XLA's convolution is the fastest of the forms measured in docs/performance.md, gradients included.

    Args:
      params: w [K, C, D], b [D].
      x: [B, T + K - 1, C].

    Returns:
      [B, T, D], in the dtype of w.
    """
    width, inputs, outputs = params.w.shape
    x = x.astype(params.w.dtype)
    if x.shape[1] == width:
        y = jnp.einsum("BC,CD->BD", x.reshape(x.shape[0], width * inputs), params.w.reshape(-1, outputs))[:, None]
    elif width == 1:
        y = jnp.einsum("BTC,CD->BTD", x, params.w[0])
    else:
        y = jax.lax.conv_general_dilated(x, params.w, (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))
    return y + bias(params.b, 3)


def centred(params: Affine, x: Array) -> Array:
    """Convolution that keeps the length: (K - 1) // 2 zeros on the left, K // 2 on the right.

    For odd K both sides get K // 2, as in the paper; for even K the split is fairseq's.

    Args:
      params: w [K, C, D], b [D].
      x: [B, S, C].

    Returns:
      [B, S, D].
    """
    width = params.w.shape[0]
    return valid(params, jnp.pad(x, ((0, 0), ((width - 1) // 2, width // 2), (0, 0))))


def causal(params: Affine, history: Array, x: Array) -> tuple[Array, Array]:
    """Convolution that sees the past only: a valid one over [history; x] (section 3.3).

    Args:
      params: w [K, C, D], b [D].
      history: [B, K - 1, C], the inputs before x, oldest first; zeros at the start of the sequence.
      x: [B, T, C], any T >= 1.

    Returns:
      Output [B, T, D] and the history for what follows x.
    """
    padded = jnp.concatenate([history, x], axis=1)
    return valid(params, padded), padded[:, x.shape[1] :]
