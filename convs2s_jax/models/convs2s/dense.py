"""The dense convolution of ConvS2S blocks (section 3.2): every channel out sees every channel in, at K positions."""

from typing import Literal

import jax

from convs2s_jax.core.config import record
from convs2s_jax.models.convs2s.convolution import Convolution
from convs2s_jax.nn import convolution
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.convolution import Form
from convs2s_jax.nn.types import Array, Key


@jax.tree_util.register_static
@record
class DenseConfig:
    """Nothing can be chosen."""

    kind: Literal["dense"] = "dense"

    def at(self, index: int) -> "DenseConfig":
        """All layers are alike."""
        del index
        return self

    def check_inputs(self, inputs: int) -> None:
        """Any C will do."""


def init(key: Key, cfg: DenseConfig, *, width: int, inputs: int, outputs: int, keep: float) -> Affine:
    """w [K, C, D] (`nn.convolution.init`)."""
    del cfg
    return convolution.init(key, width, inputs, outputs, keep=keep)


def centred(params: Affine, cfg: DenseConfig, x: Array, form: Form) -> Array:
    """`nn.convolution.centred`."""
    del cfg
    return convolution.centred(params, x, form)


def causal(params: Affine, cfg: DenseConfig, history: Array, x: Array, form: Form) -> tuple[Array, Array]:
    """`nn.convolution.causal`."""
    del cfg
    return convolution.causal(params, history, x, form)


def reach(cfg: DenseConfig, width: int) -> int:
    """K - 1."""
    del cfg
    return width - 1


def weights(cfg: DenseConfig, *, width: int, inputs: int, outputs: int) -> int:
    """K C D."""
    del cfg
    return width * inputs * outputs


def dense(params: Affine, cfg: DenseConfig) -> Affine:
    """Itself."""
    del cfg
    return params


KIND = Convolution(
    config=DenseConfig, init=init, centred=centred, causal=causal, reach=reach, weights=weights, dense=dense
)
