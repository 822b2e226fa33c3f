"""Depthwise convolutions over time (Wu et al. 2019, section 2), their taps, and convolutions factored into both axes.

Channel c of C belongs to head h = c // (C / H), and the channels of a head share their taps. H = C is the depthwise
convolution. Tap j reads position t + j r of the padded input, where r is the dilation. Padding is added by
`nn.convolution.centred` and `causal`, or by the argument `padding`.

There are three kinds of taps, entries of `TAPS`:

    separable    w                          one kernel per channel, H = C (Chollet 2017)
    lightweight  softmax_K(u)               one per head; its taps sum to one (Wu et al. 2019, section 3)
    dynamic      softmax_K(sum_c Q_c x_tc)  one per head and position (Wu et al. 2019, section 4, equation 5)

A factored convolution is a depthwise one, then a linear map of the channels, with K C + C D weights (separable),
K H + C D (lightweight) or C K H + C D (dynamic) instead of K C D:

    y_t = b + (sum_j w_{j,h(c)} x_{t+jr,c}) P        w the taps, P [C, D]
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from convs2s_jax.nn import affine, struct
from convs2s_jax.nn.affine import Affine, linear
from convs2s_jax.nn.convolution import Valid
from convs2s_jax.nn.dropout import dropout
from convs2s_jax.nn.gradient import broadcast
from convs2s_jax.nn.types import Array, Key, accumulation_dtype

BLOCK = 64
"""Positions per block of the matrix products. A block has at most twice as many, since arithmetic grows with it."""


def depthwise(w: Array, x: Array, dilation: int = 1, padding: tuple[int, int] = (0, 0)) -> Array:
    """Compute y_{t,c} = sum_j w_{j,h(c)} x_{t+jr,c}, with w_{t,j,h(c)} if each position has its own taps.

    For each block of m positions, the taps form a band matrix [m, m + (K - 1) r], which multiplies the input of the
    block. In a sequence of one block, the columns that would multiply padding are removed, so a short sequence needs
    T x T products, however wide the kernel is. XLA's grouped convolution computes the same, but is 20 to 80 times
    slower with its gradients on CPU (benchmarks/depthwise.py).

    Args:
      w: [K, H] for shared taps, [B, 1, K, H] for taps per row, or [B, T, K, H] for taps per position; H divides C.
      x: [B, T + (K - 1) r - p, C].
      dilation: r.
      padding: zeros before and after x, p in total.

    Returns:
      [B, T, C], in the dtype of w.
    """
    K, H = w.shape[-2:]
    B, J, C = x.shape
    x = x.astype(w.dtype).reshape(B, J, H, C // H)
    if J + sum(padding) == (K - 1) * dilation + 1:
        dtype = accumulation_dtype(w.dtype)
        each = (w if w.ndim == 4 else w[None, None])[:, 0, :, :, None].astype(dtype)
        y = jnp.sum(each * _padded(x, padding)[:, ::dilation].astype(dtype), axis=1)
        return y.astype(w.dtype).reshape(B, 1, C)
    products = jax.checkpoint(_products, static_argnums=(2, 3)) if w.ndim == 2 else _products  # shared taps are small
    return products(w, x, dilation, padding).reshape(B, -1, C)


def _padded(x: Array, padding: tuple[int, int]) -> Array:
    """Pad the positions of x [B, J, H, X] with zeros."""
    return jnp.pad(x, ((0, 0), padding, (0, 0), (0, 0)))


def _products(w: Array, x: Array, dilation: int, padding: tuple[int, int]) -> Array:
    K, H = w.shape[-2:]
    B, J, _, X = x.shape
    reach = (K - 1) * dilation
    T = J + sum(padding) - reach
    count = max(1, T // max(BLOCK, reach))
    m = -(-T // count)
    columns = slice(padding[0], padding[0] + J)
    if count > 1:
        x, columns = _blocks(_padded(x, padding), count, m, reach), slice(None)
    if w.ndim == 2:
        band = _band(broadcast(w.T[:, None], (H, m, K)), dilation)[..., columns]
        y = jnp.einsum("HTJ,BJHX->BTHX", band, x)
    else:
        w = jnp.pad(broadcast(w, (B, T, K, H)), ((0, 0), (0, count * m - T), (0, 0), (0, 0)))
        w = jnp.moveaxis(w.reshape(B * count, m, K, H), 3, 1)
        y = jnp.swapaxes(_band(w, dilation)[..., columns] @ jnp.swapaxes(x, 1, 2), 1, 2)
    return y.reshape(B, count * m, H, X)[:, :T]


def _blocks(x: Array, count: int, length: int, reach: int) -> Array:
    """Split [B, T + reach, ...] into overlapping blocks [B * count, length + reach, ...]; reach <= length."""
    B, J, *rest = x.shape
    x = jnp.pad(x, ((0, 0), (0, (count + 1) * length - J), *((0, 0) for _ in rest)))
    blocks = x.reshape(B, count + 1, length, *rest)
    overlapping = jnp.concatenate([blocks[:, :-1], blocks[:, 1:, :reach]], axis=2)
    return overlapping.reshape(B * count, length + reach, *rest)


def _band(w: Array, dilation: int) -> Array:
    """Turn taps [..., m, K] of m positions into a band matrix [..., m, m + (K - 1) r]; taps of row t start in column t.

    Each row of taps is padded with m zeros, which makes it one longer than a row of the matrix. Reading the flat array
    in rows of the matrix therefore shifts each row of taps one column further right.
    """
    *rest, m, K = w.shape
    columns = m + (K - 1) * dilation
    padded = jax.lax.pad(w, jnp.zeros((), w.dtype), [(0, 0, 0)] * (w.ndim - 1) + [(0, m, dilation - 1)])
    return padded.reshape(*rest, m * (columns + 1))[..., : m * columns].reshape(*rest, m, columns)


Draw = Callable[[Key, tuple[int, ...]], Array]
"""An initialiser, (key, shape) -> array: `normal(deviation)` or `uniform(bound)`, depending on the family."""


def normal(deviation: float) -> Draw:
    """Return an initialiser that samples from N(0, deviation)."""
    return lambda key, shape: deviation * jax.random.normal(key, shape)


def uniform(bound: float) -> Draw:
    """Return an initialiser that samples from U(-bound, bound)."""
    return lambda key, shape: jax.random.uniform(key, shape, minval=-bound, maxval=bound)


@struct.dataclass
class Kernel:
    """Parameters of separable convolutions.

    Attributes:
      w: [K, C]; during training a `weight_norm.Normed`, as in `Affine`.
    """

    w: Any


@struct.dataclass
class SharedTaps:
    """Parameters of lightweight convolutions.

    Attributes:
      scores: u [K, H], the taps before their softmax.
    """

    scores: Array


@struct.dataclass
class PredictedTaps:
    """Parameters of dynamic convolutions.

    Attributes:
      maker: Q [C, K, H], which maps the channels of a position to the scores of its taps.
    """

    maker: Array


class TapKind(NamedTuple):
    """A kind of taps.

    Attributes:
      init: (key, K, C, H, draw) -> parameters.
      taps: (parameters, x [N, T, C]) -> shared taps [K, H], or taps per position [N, T, K, H].
    """

    init: Callable[[Key, int, int, int, Draw], Any]
    taps: Callable[[Any, Array], Array]


def softmax(scores: Array) -> Array:
    """Softmax over K of scores [..., K, H], in the dtype of the scores."""
    return jax.nn.softmax(scores.astype(accumulation_dtype(scores.dtype)), axis=-2).astype(scores.dtype)


def predicted(maker: Array, x: Array) -> Array:
    """Predict the taps of each position, softmax_K(sum_c Q_{c,k,h} x_{t,c}): x [N, T, C] -> [N, T, K, H].

    Unlike attention weights, the taps of a position depend only on the channels of that position.
    """
    C, K, H = maker.shape
    scores = x.astype(maker.dtype).reshape(-1, C) @ maker.reshape(C, K * H)
    return softmax(scores.reshape(*x.shape[:2], K, H))


TAPS: dict[str, TapKind] = {
    "separable": TapKind(lambda key, K, _C, H, draw: Kernel(draw(key, (K, H))), lambda params, _x: params.w),
    "lightweight": TapKind(
        lambda key, K, _C, H, draw: SharedTaps(draw(key, (K, H))), lambda params, _x: softmax(params.scores)
    ),
    "dynamic": TapKind(
        lambda key, K, C, H, draw: PredictedTaps(draw(key, (C, K, H))),
        lambda params, x: predicted(params.maker, x),
    ),
}


def taps(kind: TapKind, params: Any, x: Array, rate: float = 0.0, key: Key | None = None) -> Array:
    """Return the taps for x [N, T, C], an argument of `depthwise`: [K, H] or [N, T, K, H].

    With dropout, shared taps are [N, 1, K, H]: each row has its own mask, the same at all positions.
    """
    w = kind.taps(params, x)
    if w.ndim == 2 and key is not None and rate > 0.0:
        w = broadcast(w[None, None], (len(x), 1, *w.shape))
    return dropout(w, rate, key)


@struct.dataclass
class Factored:
    """Parameters of both factors.

    Attributes:
      taps: parameters of an entry of `TAPS`.
      pointwise: P [C, D] and b [D].
    """

    taps: Any
    pointwise: Affine


def init_factored(
    key: Key, kind: TapKind, draw: Draw, width: int, inputs: int, outputs: int, *, heads: int, keep: float
) -> Factored:
    """Initialise parameters: taps from `draw`, P ~ N(0, sqrt(keep / C)).

    Args:
      key: random key for both factors.
      kind: an entry of `TAPS`.
      draw: initialiser of the taps.
      width: kernel width K.
      inputs: number of input channels C.
      outputs: number of output channels D.
      heads: number of heads H, a divisor of C; C for separable convolutions.
      keep: factor on the variance of P.
    """
    taps_key, pointwise_key = jax.random.split(key)
    return Factored(
        taps=kind.init(taps_key, width, inputs, heads, draw),
        pointwise=affine.init(pointwise_key, inputs, outputs, keep=keep),
    )


def factored_convolution(params: Factored, kind: TapKind, x: Array, dilation: int = 1) -> Valid:
    """Return the convolution for x [B, T, C]. Dynamic taps are predicted from x before it is padded."""
    w = taps(kind, params.taps, x)
    return lambda padded: linear(params.pointwise, depthwise(w, padded, dilation))


def factored_as_dense(params: Factored, kind: TapKind) -> Affine | None:
    """Return the equivalent dense convolution, w_j P for each tap, without dilation; None if the taps depend on x."""
    if isinstance(params.taps, PredictedTaps):
        return None
    P = params.pointwise
    w = kind.taps(params.taps, P.w)
    w = jnp.repeat(w, len(P.w) // w.shape[1], axis=1)
    return Affine(w=w[:, :, None] * P.w[None], b=P.b)
