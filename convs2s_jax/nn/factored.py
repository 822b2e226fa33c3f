"""Factored convolutions: a depthwise convolution over time, then a linear map of the channels.

    y_t = b + (sum_j w_{j,h(c)} x_{t+jr,c}) P        w the taps (`nn.taps`), P [C, D]

They have K C + C D weights (separable), K H + C D (lightweight) or C K H + C D (dynamic) instead of K C D.
"""

from typing import Any

import jax
import jax.numpy as jnp

from convs2s_jax.nn import affine, struct
from convs2s_jax.nn.affine import Affine, linear
from convs2s_jax.nn.convolution import Valid
from convs2s_jax.nn.depthwise import depthwise
from convs2s_jax.nn.taps import Draw, TapKind
from convs2s_jax.nn.types import Array, Key


@struct.dataclass
class Factored:
    """Parameters of both factors.

    Attributes:
      taps: parameters of an entry of `nn.taps.TAPS`.
      pointwise: P [C, D] and b [D].
    """

    taps: Any
    pointwise: Affine


def init(
    key: Key, kind: TapKind[Any], draw: Draw, *, width: int, inputs: int, outputs: int, heads: int, keep: float
) -> Factored:
    """Initialise parameters: taps from `draw`, P ~ N(0, sqrt(keep / C)).

    Args:
      key: random key for both factors.
      kind: an entry of `nn.taps.TAPS`.
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


def convolution(params: Factored, kind: TapKind[Any], x: Array, dilation: int = 1) -> Valid:
    """Return the convolution for x [B, T, C]. Dynamic taps are predicted from x before it is padded."""
    w = kind.taps(params.taps, x, 0.0, None)
    return lambda padded: linear(params.pointwise, depthwise(w, padded, dilation))


def dense(params: Factored, kind: TapKind[Any]) -> Affine | None:
    """Return the equivalent dense convolution, w_j P for each tap, without dilation; None if the taps depend on x."""
    if kind.fixed is None:
        return None
    w, pointwise = kind.fixed(params.taps), params.pointwise
    w = jnp.repeat(w, len(pointwise.w) // w.shape[1], axis=1)
    return Affine(w=w[:, :, None] * pointwise.w[None], b=pointwise.b)
