"""Lightweight convolutions inside a block (Wu et al. 2019, section 3, equation 4).

    y_t = b + (sum_j softmax_j(u)_{j,h} * x_{t+j}) P        u [K, H], h the head of each channel, P [C, D]

K H + C D weights: the channels of a head share one kernel, whose taps sum to one.
"""

from functools import partial
from typing import Literal

import flax.struct
import jax
import jax.numpy as jnp

from convs2s_jax.core.config import check, record
from convs2s_jax.models.convs2s.convolution import Convolution
from convs2s_jax.nn import affine, depthwise
from convs2s_jax.nn.affine import Affine, linear
from convs2s_jax.nn.convolution import Form
from convs2s_jax.nn.types import Array, Key


@jax.tree_util.register_static
@record
class LightweightConfig:
    """Heads: H, a divisor of the channels of every layer."""

    kind: Literal["lightweight"] = "lightweight"
    heads: int = 8

    def __post_init__(self) -> None:
        check(self.heads >= 1, f"heads is {self.heads}: channels share the kernels of heads; use 1 or more")

    def at(self, index: int) -> "LightweightConfig":
        """All layers are alike."""
        del index
        return self

    def check_inputs(self, inputs: int) -> None:
        """Refuse C that H does not divide."""
        check_heads(self.heads, inputs)


def check_heads(heads: int, inputs: int) -> None:
    """Refuse C = `inputs` channels that H = `heads` does not divide."""
    check(
        inputs % heads == 0,
        f"convolution.heads is {heads}, and a layer has {inputs} channels: heads have equal shares; use a divisor",
    )


@flax.struct.dataclass
class Lightweight:
    """Parameters: `taps` u [K, H] before the softmax, `pointwise` P [C, D] and b."""

    taps: Array
    pointwise: Affine


def init(key: Key, cfg: LightweightConfig, *, width: int, inputs: int, outputs: int, keep: float) -> Lightweight:
    """u ~ N(0, 1); P ~ N(0, sqrt(4 keep / C)), as before any GLU.

    A mean over K positions has less variance than one of them. Nothing makes up for that: neighbours grow alike from
    layer to layer, so that a factor that is right for one layer makes twenty explode (500 times at K = 7).
    """
    taps_key, pointwise_key = jax.random.split(key)
    return Lightweight(
        taps=jax.random.normal(taps_key, (width, cfg.heads)),
        pointwise=affine.init(pointwise_key, inputs, outputs, keep=4 * keep),
    )


def centred(params: Lightweight, cfg: LightweightConfig, x: Array, form: Form) -> Array:
    """As long as x; zeros on both sides."""
    del form
    along_time = partial(depthwise.valid, depthwise.softmax(params.taps))
    return linear(params.pointwise, depthwise.centred(along_time, x, reach(cfg, len(params.taps))))


def causal(params: Lightweight, cfg: LightweightConfig, history: Array, x: Array, form: Form) -> tuple[Array, Array]:
    """Over [history; x]."""
    del cfg, form
    y, after = depthwise.causal(partial(depthwise.valid, depthwise.softmax(params.taps)), history, x)
    return linear(params.pointwise, y), after


def reach(cfg: LightweightConfig, width: int) -> int:
    """K - 1."""
    del cfg
    return width - 1


def weights(cfg: LightweightConfig, *, width: int, inputs: int, outputs: int) -> int:
    """K H + C D."""
    return width * cfg.heads + inputs * outputs


def dense(params: Lightweight, cfg: LightweightConfig) -> Affine:
    """softmax(u)_j P for each tap."""
    pointwise = params.pointwise
    w = jnp.repeat(depthwise.softmax(params.taps), len(pointwise.w) // cfg.heads, axis=1)
    return Affine(w=w[:, :, None] * pointwise.w[None], b=pointwise.b)


KIND = Convolution(
    config=LightweightConfig, init=init, centred=centred, causal=causal, reach=reach, weights=weights, dense=dense
)
