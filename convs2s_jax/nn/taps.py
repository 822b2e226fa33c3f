"""The taps (kernel weights) of depthwise convolutions (`nn.depthwise`). There are three kinds.

    separable    w                          one kernel per channel, H = C (Chollet 2017)
    lightweight  softmax_K(u)               one per head; its taps sum to one (Wu et al. 2019, section 3)
    dynamic      softmax_K(sum_c Q_c x_tc)  one per head and position (Wu et al. 2019, section 4, equation 5)

Each kind is an entry of `TAPS`, which all model families share.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import jax

from convs2s_jax.nn import draws, struct
from convs2s_jax.nn.affine import Kernel
from convs2s_jax.nn.dropout import dropout
from convs2s_jax.nn.gradient import broadcast
from convs2s_jax.nn.types import Array, Key, accumulation_dtype

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
    return lambda key, shape: deviation * draws.normal(key, shape)


def uniform(bound: float) -> Draw:
    """Return an initialiser that samples from U(-bound, bound)."""
    return lambda key, shape: draws.uniform(key, shape, bound)


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
