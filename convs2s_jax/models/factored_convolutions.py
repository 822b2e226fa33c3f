"""Convolutions in two factors for ConvS2S blocks (`nn.depthwise`), and the list of all kinds of convolution."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from convs2s_jax.core.config import add_kind, check, record
from convs2s_jax.models.convolutions import ConvolutionFunctions, ConvolutionKind, DenseConfig
from convs2s_jax.nn import depthwise
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.convolution import DenseForm, Valid
from convs2s_jax.nn.depthwise import TAPS, normal
from convs2s_jax.nn.types import Array, Key


@record
class SeparableConfig(ConvolutionKind):
    """Depthwise separable convolutions (Chollet 2017; Kaiser, Gomez and Chollet 2018, section 2.1).

    Attributes:
      dilations: distance between taps, one entry per layer, such as (1, 2, 4). If there are more layers than entries,
        the list starts over.
    """

    kind: Literal["separable"] = "separable"
    dilations: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        check(len(self.dilations) > 0, "dilations is empty: use at least one, such as [1]")
        for dilation in self.dilations:
            check(dilation >= 1, f"dilations contains {dilation}: use 1 (no dilation) or more")

    def at(self, index: int) -> "SeparableConfig":
        """Return the config of one layer, with only its own dilation."""
        return SeparableConfig(dilations=(self.dilations[index % len(self.dilations)],))

    @property
    def dilation(self) -> int:
        """Distance between taps, in one layer (`at`)."""
        return self.dilations[0]


@record
class _Headed(ConvolutionKind):
    """Convolutions whose channels share the taps of heads.

    Attributes:
      heads: H, a divisor of the channels of every layer.
    """

    heads: int = 8

    def __post_init__(self) -> None:
        check(self.heads >= 1, f"heads is {self.heads}: each head has a kernel that its channels share; use 1 or more")

    def check_inputs(self, inputs: int) -> None:
        """Reject a C that is not a multiple of H."""
        check(
            inputs % self.heads == 0,
            f"convolution.heads is {self.heads}, but a layer has {inputs} channels: all heads have the same number of "
            "channels; use a divisor",
        )


@record
class LightweightConfig(_Headed):
    """Lightweight convolutions (Wu et al. 2019, section 3, equation 4)."""

    kind: Literal["lightweight"] = "lightweight"


@record
class DynamicConfig(_Headed):
    """Dynamic convolutions (Wu et al. 2019, section 4, equation 5)."""

    kind: Literal["dynamic"] = "dynamic"


if TYPE_CHECKING:  # type checkers do not know which kinds are registered
    ConvolutionConfig = ConvolutionKind
else:
    ConvolutionConfig = DenseConfig | SeparableConfig | LightweightConfig | DynamicConfig
"""The config of any kind of convolution: a union discriminated by `kind`. The default is dense."""


def _factored(name: str, deviation: Callable[[int, int], float]) -> ConvolutionFunctions:
    """Build a kind with two factors: taps ~ N(0, deviation(K, C)) of the kind `name`, P ~ N(0, sqrt(4 keep / C)).

    The factor 4 is the same as for every convolution before a GLU (`nn.convolution.init`).
    """
    taps = TAPS[name]

    def init(key: Key, cfg: Any, width: int, inputs: int, outputs: int, keep: float) -> depthwise.Factored:
        draw, heads = normal(deviation(width, inputs)), cfg.heads if isinstance(cfg, _Headed) else inputs
        return depthwise.init_factored(key, taps, draw, width, inputs, outputs, heads=heads, keep=4 * keep)

    def convolve(params: depthwise.Factored, cfg: Any, x: Array, _form: DenseForm) -> Valid:
        return depthwise.factored_convolution(params, taps, x, cfg.dilation)

    def dense(params: depthwise.Factored, cfg: Any) -> Affine | None:
        return None if cfg.dilation > 1 else depthwise.factored_as_dense(params, taps)

    return ConvolutionFunctions(init, convolve, dense)


# Deviations that preserve the variance, except for lightweight taps: an average over K positions has a smaller variance
# than one position. This is not corrected, because neighbouring positions become more similar from layer to layer. A
# factor that is right for one layer makes twenty layers explode (500 times at K = 7).
SeparableConfig.functions = _factored("separable", lambda width, _: width**-0.5)
LightweightConfig.functions = _factored("lightweight", lambda *_: 1.0)
DynamicConfig.functions = _factored("dynamic", lambda _, inputs: inputs**-0.5)


def register_convolution(config: type[ConvolutionKind], **functions: Callable[..., Any]) -> None:
    """Register a custom kind of convolution, so that `convolution=config()` uses it (`models.config.register_encoder`).

    Args:
      config: a `record` that inherits from `ConvolutionKind`, with a field `kind` whose default is the name of the
        kind.
      **functions: `init`, `convolve` and perhaps `dense`, as in `ConvolutionFunctions`.

    Raises:
      ValueError: the kind is taken, or the class is not a record of a kind of convolution.
    """
    add_kind(ConvolutionConfig, ConvolutionKind, config)
    config.functions = ConvolutionFunctions(**functions)
