"""Depthwise separable convolutions inside a block (Chollet 2017; Kaiser, Gomez and Chollet 2018, section 2.1).

    y_t = b + (sum_j w_j * x_{t + j r}) P        w [K, C] for each channel, P [C, D] for each position

K C + C D weights in place of K C D: first along time, then along channels.
"""

from functools import partial
from typing import Literal

import flax.struct
import jax

from convs2s_jax.core.config import check, record
from convs2s_jax.models.convs2s.convolution import Convolution
from convs2s_jax.nn import affine, depthwise
from convs2s_jax.nn.affine import Affine, Kernel, linear
from convs2s_jax.nn.convolution import Form
from convs2s_jax.nn.types import Array, Key


@jax.tree_util.register_static
@record
class SeparableConfig:
    """Dilations: r of the first layer, of the second and so on, then from the start again; (1, 2, 4) for example."""

    kind: Literal["separable"] = "separable"
    dilations: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        check(len(self.dilations) > 0, "dilations is empty: name one at least, such as [1]")
        for dilation in self.dilations:
            check(dilation >= 1, f"dilations has {dilation}: a step from tap to tap; use 1 (no dilation) or more")

    def at(self, index: int) -> "SeparableConfig":
        """The layer's own dilation alone."""
        return SeparableConfig(dilations=(self.dilations[index % len(self.dilations)],))

    def check_inputs(self, inputs: int) -> None:
        """Any C will do."""


@flax.struct.dataclass
class Separable:
    """Parameters: `depthwise` w [K, C], `pointwise` P [C, D] and b."""

    depthwise: Kernel
    pointwise: Affine


def init(key: Key, cfg: SeparableConfig, *, width: int, inputs: int, outputs: int, keep: float) -> Separable:
    """w ~ N(0, sqrt(1 / K)), P ~ N(0, sqrt(4 keep / C)): together the variance of a dense one."""
    del cfg
    depthwise_key, pointwise_key = jax.random.split(key)
    return Separable(
        depthwise=Kernel(w=width**-0.5 * jax.random.normal(depthwise_key, (width, inputs))),
        pointwise=affine.init(pointwise_key, inputs, outputs, keep=4 * keep),
    )


def centred(params: Separable, cfg: SeparableConfig, x: Array, form: Form) -> Array:
    """As long as x; zeros on both sides."""
    del form
    along_time = partial(depthwise.valid, params.depthwise.w, dilation=_dilation(cfg))
    return linear(params.pointwise, depthwise.centred(along_time, x, reach(cfg, len(params.depthwise.w))))


def causal(params: Separable, cfg: SeparableConfig, history: Array, x: Array, form: Form) -> tuple[Array, Array]:
    """Over [history; x]."""
    del form
    along_time = partial(depthwise.valid, params.depthwise.w, dilation=_dilation(cfg))
    y, after = depthwise.causal(along_time, history, x)
    return linear(params.pointwise, y), after


def reach(cfg: SeparableConfig, width: int) -> int:
    """(K - 1) r."""
    return (width - 1) * _dilation(cfg)


def weights(cfg: SeparableConfig, *, width: int, inputs: int, outputs: int) -> int:
    """K C + C D."""
    del cfg
    return width * inputs + inputs * outputs


def dense(params: Separable, cfg: SeparableConfig) -> Affine | None:
    """w_j P for each tap, without dilation."""
    if _dilation(cfg) > 1:
        return None
    return Affine(w=params.depthwise.w[:, :, None] * params.pointwise.w[None], b=params.pointwise.b)


def _dilation(cfg: SeparableConfig) -> int:
    return cfg.dilations[0]


KIND = Convolution(
    config=SeparableConfig, init=init, centred=centred, causal=causal, reach=reach, weights=weights, dense=dense
)
