"""Dynamic convolutions inside a block (Wu et al. 2019, section 4, equation 5): the kernel comes from the position.

    u_t = x_t Q                                          Q [C, K, H]
    y_t = b + (sum_j softmax_j(u_t)_{j,h} * x_{t+j}) P   h the head of each channel, P [C, D]

C K H + C D weights. Only the channels of the position itself choose its kernel, so that this is no attention.
"""

from functools import partial
from typing import Literal

import flax.struct
import jax

from convs2s_jax.core.config import check, record
from convs2s_jax.models.convs2s.convolution import Convolution
from convs2s_jax.models.convs2s.lightweight import check_heads
from convs2s_jax.nn import affine, depthwise
from convs2s_jax.nn.affine import Affine, linear
from convs2s_jax.nn.convolution import Form
from convs2s_jax.nn.types import Array, Key


@jax.tree_util.register_static
@record
class DynamicConfig:
    """Heads: H, a divisor of the channels of every layer."""

    kind: Literal["dynamic"] = "dynamic"
    heads: int = 8

    def __post_init__(self) -> None:
        check(self.heads >= 1, f"heads is {self.heads}: channels share the kernels of heads; use 1 or more")

    def at(self, index: int) -> "DynamicConfig":
        """All layers are alike."""
        del index
        return self

    def check_inputs(self, inputs: int) -> None:
        """Refuse C that H does not divide."""
        check_heads(self.heads, inputs)


@flax.struct.dataclass
class Dynamic:
    """Parameters: `maker` Q [C, K, H] of the kernels before the softmax, `pointwise` P [C, D] and b."""

    maker: Array
    pointwise: Affine


def init(key: Key, cfg: DynamicConfig, *, width: int, inputs: int, outputs: int, keep: float) -> Dynamic:
    """Q ~ N(0, sqrt(1 / C)); P ~ N(0, sqrt(4 keep / C)), as before any GLU."""
    maker_key, pointwise_key = jax.random.split(key)
    return Dynamic(
        maker=inputs**-0.5 * jax.random.normal(maker_key, (inputs, width, cfg.heads)),
        pointwise=affine.init(pointwise_key, inputs, outputs, keep=4 * keep),
    )


def centred(params: Dynamic, cfg: DynamicConfig, x: Array, form: Form) -> Array:
    """As long as x; zeros on both sides."""
    del cfg, form
    kernels = depthwise.predicted(params.maker, x)
    y = depthwise.centred(partial(depthwise.dynamic, kernels), x, kernels.shape[2] - 1)
    return linear(params.pointwise, y)


def causal(params: Dynamic, cfg: DynamicConfig, history: Array, x: Array, form: Form) -> tuple[Array, Array]:
    """Over [history; x]."""
    del cfg, form
    y, after = depthwise.causal(partial(depthwise.dynamic, depthwise.predicted(params.maker, x)), history, x)
    return linear(params.pointwise, y), after


def reach(cfg: DynamicConfig, width: int) -> int:
    """K - 1."""
    del cfg
    return width - 1


def weights(cfg: DynamicConfig, *, width: int, inputs: int, outputs: int) -> int:
    """C K H + C D."""
    return inputs * width * cfg.heads + inputs * outputs


def dense(params: Dynamic, cfg: DynamicConfig) -> None:
    """There is none: the kernel depends on the input."""
    del params, cfg


KIND = Convolution(
    config=DynamicConfig, init=init, centred=centred, causal=causal, reach=reach, weights=weights, dense=dense
)
