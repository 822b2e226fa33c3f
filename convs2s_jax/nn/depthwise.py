"""Depthwise convolutions along time (Wu et al. 2019, section 2), given their taps (`nn.taps`).

A channel c of C belongs to head h = c // (C / H), and the channels of a head share their taps; H = C is the depthwise
convolution. The input is already padded (`nn.convolution.centred`, `causal`): tap j reads position t + j r, r the
dilation. XLA's grouped convolution computes the same, but 20 to 80 times slower with its gradients on CPU
(benchmarks/depthwise.py).
"""

from collections.abc import Callable
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp

from convs2s_jax.nn.types import Array, wide

DepthwiseForm = Literal["auto", "shifts", "products"]

WIDE = 8
"""From this width on `auto` takes products: at width 7 both are about equally fast, at 15 products are faster."""

BLOCK = 64
"""Positions per block of the matrix products, at most twice as many: the arithmetic grows with the block."""


def depthwise(w: Array, x: Array, dilation: int = 1, form: DepthwiseForm = "auto") -> Array:
    """y_{t,c} = sum_j w_{j,h(c)} x_{t+jr,c}, with w_{t,j,h(c)} where each position has its own taps.

    Args:
      w: [K, H], or [B, T, K, H] with its own taps for each position; C is a multiple of H.
      x: [B, T + (K - 1) r, C].
      dilation: r.
      form: how it is computed, one of `DEPTHWISE_FORMS`; "auto" chooses by K.

    Returns:
      [B, T, C], in the dtype of w.
    """
    K, H = w.shape[-2:]
    B, U, C = x.shape
    T = U - (K - 1) * dilation
    x = x.astype(w.dtype).reshape(B, U, H, C // H)
    if T == 1:
        kernels = w if w.ndim == 4 else w[None, None]
        taps = kernels[:, 0, :, :, None] * x[:, ::dilation]
        y = jnp.sum(taps, axis=1, dtype=wide(w.dtype)).astype(w.dtype)
    else:
        chosen = ("products" if K >= WIDE else "shifts") if form == "auto" else form
        y = DEPTHWISE_FORMS[chosen](w, x, dilation)
    return y.reshape(B, T, C)


@partial(jax.checkpoint, static_argnums=(2,), prevent_cse=False)
def shifts(w: Array, x: Array, dilation: int) -> Array:
    """A sum of K shifted copies of the input, each multiplied by its tap. The copies are not kept for the gradients.

    Args:
      w: [K, H] or [B, T, K, H].
      x: [B, T + (K - 1) r, H, C / H].
      dilation: r.

    Returns:
      [B, T, H, C / H], in the dtype of w; the sum is taken in float32 or better.
    """
    kernels = (w if w.ndim == 4 else w[None, None]).astype(wide(w.dtype))
    x = x.astype(kernels.dtype)
    K = w.shape[-2]
    T = x.shape[1] - (K - 1) * dilation
    taps = (kernels[:, :, j, :, None] * x[:, j * dilation : j * dilation + T] for j in range(K))
    return sum(taps, jnp.zeros((), x.dtype)).astype(w.dtype)


@partial(jax.checkpoint, static_argnums=(2,))
def products(w: Array, x: Array, dilation: int) -> Array:
    """The same by matrix products: for each block of L positions, the taps form a band matrix [L, L + (K - 1) r].

    Arguments and result as for `shifts`. Only the arguments are kept for the gradients.
    """
    K, H = w.shape[-2:]
    B, R = x.shape[0], x.shape[3]
    reach = (K - 1) * dilation
    T = x.shape[1] - reach
    count = max(1, T // max(BLOCK, reach))
    L = -(-T // count)
    x = _blocks(x, count, L, reach)
    if w.ndim == 2:
        band = _band(jnp.broadcast_to(w.T[:, None], (H, L, K)), dilation)
        y = jnp.einsum("HTU,BUHR->BTHR", band, x)
    else:
        w = jnp.pad(w, ((0, 0), (0, count * L - T), (0, 0), (0, 0))).reshape(B * count, L, K, H)
        band = _band(jnp.moveaxis(w, 3, 1), dilation)
        y = jnp.einsum("BHTU,BUHR->BTHR", band, x)
    return y.reshape(B, count * L, H, R)[:, :T]


DEPTHWISE_FORMS: dict[str, Callable[[Array, Array, int], Array]] = {"shifts": shifts, "products": products}
"""Shifts need less arithmetic, but the gradient of their taps reads the input K times (docs/performance.md)."""


def _blocks(x: Array, count: int, length: int, reach: int) -> Array:
    """[B, T + reach, ...] to overlapping blocks [B * count, length + reach, ...]; reach <= length."""
    if count == 1:
        return x
    B, U, *rest = x.shape
    x = jnp.pad(x, ((0, 0), (0, (count + 1) * length - U), *((0, 0) for _ in rest)))
    blocks = x.reshape(B, count + 1, length, *rest)
    overlapping = jnp.concatenate([blocks[:, :-1], blocks[:, 1:, :reach]], axis=2)
    return overlapping.reshape(B * count, length + reach, *rest)


def _band(w: Array, dilation: int) -> Array:
    """Taps [..., L, K] of L positions as a band matrix [..., L, L + (K - 1) r]: the taps of row t start in column t.

    Each row of taps is padded with L zeros, which makes it one longer than a row of the matrix. Reading the flat array
    in rows of the matrix therefore shifts each row of taps one column further right.
    """
    *rest, L, K = w.shape
    columns = L + (K - 1) * dilation
    zero = jnp.zeros((), w.dtype)
    padded = jax.lax.pad(w, zero, [(0, 0, 0)] * (w.ndim - 1) + [(0, L, dilation - 1)])
    return padded.reshape(*rest, L * (columns + 1))[..., : L * columns].reshape(*rest, L, columns)
