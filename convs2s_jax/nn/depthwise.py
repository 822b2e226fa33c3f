"""Depthwise convolutions over time (Wu et al. 2019, section 2), their taps, and convolutions factored into both axes.

Channel c of C belongs to head h = c // (C / H), and the channels of a head share their taps. H = C is the depthwise
convolution. Tap j reads position t + j r of the padded input, where r is the dilation. Padding is added by
`nn.convolution.centred` and `causal`, or by the argument `padding`. XLA's grouped convolution computes the same, but is
20 to 80 times slower with its gradients on CPU (benchmarks/depthwise.py).

There are three kinds of taps, entries of `TAPS`:

    separable    w                          one kernel per channel, H = C (Chollet 2017)
    lightweight  softmax_K(u)               one per head; its taps sum to one (Wu et al. 2019, section 3)
    dynamic      softmax_K(sum_c Q_c x_tc)  one per head and position (Wu et al. 2019, section 4, equation 5)

A factored convolution is a depthwise one, then a linear map of the channels, with K C + C D weights (separable),
K H + C D (lightweight) or C K H + C D (dynamic) instead of K C D:

    y_t = b + (sum_j w_{j,h(c)} x_{t+jr,c}) P        w the taps, P [C, D]
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from convs2s_jax.nn import affine, struct
from convs2s_jax.nn.affine import Affine, Kernel, linear
from convs2s_jax.nn.convolution import Valid
from convs2s_jax.nn.dropout import dropout
from convs2s_jax.nn.gradient import broadcast
from convs2s_jax.nn.types import Array, Key, accumulation_dtype

DepthwiseForm = Literal["auto", "shifts", "products"]

WIDE = 2
"""Minimum width at which "auto" uses products. Between the linear maps of a model they are faster at width 3; width 2
was not measured."""

BLOCK = 64
"""Positions per block of the matrix products. A block has at most twice as many, since arithmetic grows with it."""


def depthwise(
    w: Array, x: Array, dilation: int = 1, form: DepthwiseForm = "auto", padding: tuple[int, int] = (0, 0)
) -> Array:
    """Compute y_{t,c} = sum_j w_{j,h(c)} x_{t+jr,c}, with w_{t,j,h(c)} if each position has its own taps.

    Args:
      w: [K, H] for shared taps, [B, 1, K, H] for taps per row, or [B, T, K, H] for taps per position; H divides C.
      x: [B, T + (K - 1) r - p, C].
      dilation: r.
      form: how it is computed, one of `DEPTHWISE_FORMS`; "auto" chooses by K.
      padding: zeros before and after x, p in total. Products neither store nor multiply them.

    Returns:
      [B, T, C], in the dtype of w.
    """
    K, H = w.shape[-2:]
    B, J, C = x.shape
    T = J + sum(padding) - (K - 1) * dilation
    x = x.astype(w.dtype).reshape(B, J, H, C // H)
    if T == 1:
        kernels = (w if w.ndim == 4 else w[None, None]).astype(accumulation_dtype(w.dtype))
        taps = kernels[:, 0, :, :, None] * _padded(x.astype(kernels.dtype), padding)[:, ::dilation]
        y = jnp.sum(taps, axis=1).astype(w.dtype)
    else:
        chosen = ("products" if K >= WIDE else "shifts") if form == "auto" else form
        if chosen not in DEPTHWISE_FORMS:
            raise ValueError(f"form is {form!r}: use one of auto, {', '.join(DEPTHWISE_FORMS)}")
        y = DEPTHWISE_FORMS[chosen](w, x, dilation, padding)
    return y.reshape(B, T, C)


def _padded(x: Array, padding: tuple[int, int]) -> Array:
    """Pad the positions of x [B, J, H, X] with zeros."""
    return jnp.pad(x, ((0, 0), padding, (0, 0), (0, 0))) if any(padding) else x


@partial(jax.checkpoint, static_argnums=(2, 3), prevent_cse=False)
def shifts(w: Array, x: Array, dilation: int, padding: tuple[int, int] = (0, 0)) -> Array:
    """Sum K shifted copies of the input, each multiplied by its tap. The copies are not saved for the backward pass.

    Args:
      w: [K, H], [B, 1, K, H] or [B, T, K, H].
      x: [B, T + (K - 1) r - p, H, C / H].
      dilation: r.
      padding: zeros before and after x, p in total.

    Returns:
      [B, T, H, C / H], in the dtype of w; the sum is taken in float32 or better.
    """
    kernels = (w if w.ndim == 4 else w[None, None]).astype(accumulation_dtype(w.dtype))
    x = _padded(x.astype(kernels.dtype), padding)
    K = w.shape[-2]
    T = x.shape[1] - (K - 1) * dilation
    taps = (kernels[:, :, j, :, None] * x[:, j * dilation : j * dilation + T] for j in range(K))
    return sum(taps, jnp.zeros((), x.dtype)).astype(w.dtype)


def products(w: Array, x: Array, dilation: int, padding: tuple[int, int] = (0, 0)) -> Array:
    """The same with matrix products. For each block of m positions, the taps form a band matrix [m, m + (K - 1) r].

    Arguments and result are as in `shifts`. In a sequence of one block, the columns that would multiply padding are
    removed, so a short sequence needs T x T products, however wide the kernel is. The backward pass saves the input and
    either the taps, if all rows share them, or their band matrix.
    """
    apply = jax.checkpoint(_products, static_argnums=(2, 3)) if w.ndim == 2 else _products
    return apply(w, x, dilation, padding)


DEPTHWISE_FORMS: dict[str, Callable[..., Array]] = {"shifts": shifts, "products": products}
"""Shifts need less arithmetic, but the gradient with respect to their taps reads the input K times."""


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
    zero = jnp.zeros((), w.dtype)
    padded = jax.lax.pad(w, zero, [(0, 0, 0)] * (w.ndim - 1) + [(0, m, dilation - 1)])
    return padded.reshape(*rest, m * (columns + 1))[..., : m * columns].reshape(*rest, m, columns)


ParamsT = TypeVar("ParamsT")
Draw = Callable[[Key, tuple[int, ...]], Array]
"""An initialiser, (key, shape) -> array: `normal(deviation)` or `uniform(bound)`, depending on the family."""


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


class TapKind(NamedTuple, Generic[ParamsT]):
    """A kind of taps.

    Attributes:
      init: (key, K, C, H, draw) -> parameters.
      taps: (parameters, x [N, T, C], dropout rate, key) -> shared taps [K, H], taps per row [N, 1, K, H], or taps per
        position [N, T, K, H].
      fixed: parameters -> taps [K, H] without dropout, the same at all positions. None if they depend on x.
    """

    init: Callable[[Key, int, int, int, Draw], ParamsT]
    taps: Callable[[ParamsT, Array, float, Key | None], Array]
    fixed: Callable[[ParamsT], Array] | None


def normal(deviation: float) -> Draw:
    """Return an initialiser that samples from N(0, deviation)."""
    return lambda key, shape: deviation * jax.random.normal(key, shape)


def uniform(bound: float) -> Draw:
    """Return an initialiser that samples from U(-bound, bound)."""
    return lambda key, shape: jax.random.uniform(key, shape, minval=-bound, maxval=bound)


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


def _same_everywhere(
    fixed: Callable[[ParamsT], Array], params: ParamsT, x: Array, rate: float, key: Key | None
) -> Array:
    """Return taps [K, H]; with dropout [N, 1, K, H], since each row has its own mask, the same at all positions."""
    w = fixed(params)
    if key is None or rate == 0.0:
        return w
    return dropout(broadcast(w, (len(x), *w.shape)), rate, key)[:, None]


def _init_separable(key: Key, width: int, _channels: int, heads: int, draw: Draw) -> Kernel:
    return Kernel(w=draw(key, (width, heads)))


def _stored_taps(params: Kernel) -> Array:
    w: Array = params.w
    return w


def _init_lightweight(key: Key, width: int, _channels: int, heads: int, draw: Draw) -> SharedTaps:
    return SharedTaps(scores=draw(key, (width, heads)))


def _normalised(params: SharedTaps) -> Array:
    return softmax(params.scores)


def _init_dynamic(key: Key, width: int, channels: int, heads: int, draw: Draw) -> PredictedTaps:
    return PredictedTaps(maker=draw(key, (channels, width, heads)))


def _dynamic(params: PredictedTaps, x: Array, rate: float, key: Key | None) -> Array:
    return dropout(predicted(params.maker, x), rate, key)


TAPS: dict[str, TapKind[Any]] = {
    "separable": TapKind(init=_init_separable, taps=partial(_same_everywhere, _stored_taps), fixed=_stored_taps),
    "lightweight": TapKind(init=_init_lightweight, taps=partial(_same_everywhere, _normalised), fixed=_normalised),
    "dynamic": TapKind(init=_init_dynamic, taps=_dynamic, fixed=None),
}


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
    key: Key, kind: TapKind[Any], draw: Draw, width: int, inputs: int, outputs: int, *, heads: int, keep: float
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


def factored_convolution(params: Factored, kind: TapKind[Any], x: Array, dilation: int = 1) -> Valid:
    """Return the convolution for x [B, T, C]. Dynamic taps are predicted from x before it is padded."""
    w = kind.taps(params.taps, x, 0.0, None)
    return lambda padded: linear(params.pointwise, depthwise(w, padded, dilation))


def factored_as_dense(params: Factored, kind: TapKind[Any]) -> Affine | None:
    """Return the equivalent dense convolution, w_j P for each tap, without dilation; None if the taps depend on x."""
    if kind.fixed is None:
        return None
    w, pointwise = kind.fixed(params.taps), params.pointwise
    w = jnp.repeat(w, len(pointwise.w) // w.shape[1], axis=1)
    return Affine(w=w[:, :, None] * pointwise.w[None], b=pointwise.b)
