"""Kinds of convolution for ConvS2S blocks. A kind is a config that names its functions.

`dense` is the convolution of the paper (section 3.2); the others have two factors (`nn.depthwise`).
"""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Self

import jax

from convs2s_jax.core.config import add_kind, check, record
from convs2s_jax.nn import convolution, depthwise
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.convolution import DenseForm, Valid
from convs2s_jax.nn.depthwise import TAPS, normal
from convs2s_jax.nn.types import Array, Key

# Configs are static nodes of a tree, so that layers whose configs differ never share a loop (`convs2s.apply_layers`).


class ConvolutionFunctions(NamedTuple):
    """A kind of convolution, from C channels to the D = 2 C' that a GLU reads. `cfg` is the config of one layer.

    Attributes:
      init: (key, cfg, width K, inputs C, outputs D, keep) -> parameters; keep is the fraction of x that dropout keeps.
      convolve: (parameters, cfg, x [B, T, C], form) -> the convolution for this x, which is called with x padded
        (`centred` or `causal` of `nn.convolution`); its reach is (K - 1) cfg.dilation.
      dense: (parameters, cfg) -> the equivalent dense convolution, or None if there is none. Tables of its products
        replace the first layer of a decoder (`models.convs2s_fast`).
    """

    init: Callable[[Key, Any, int, int, int, float], Any]
    convolve: Callable[[Any, Any, Array, DenseForm], Valid]
    dense: Callable[[Any, Any], Affine | None]


class EveryLayerAlike:
    """Defaults that most kinds share. The config of a custom kind can inherit them.

    Attributes:
      kind: name of the kind.
      functions: its functions.
    """

    kind: str
    functions: ClassVar[ConvolutionFunctions]

    @property
    def dilation(self) -> int:
        """Distance between taps, in one layer."""
        return 1

    def at(self, _index: int) -> Self:
        """Return the config of the layer with this index, counted from 0."""
        return self

    def check_inputs(self, inputs: int) -> None:
        """Reject an unsuitable number of input channels; the default accepts any C = `inputs`."""

    def heads_of(self, inputs: int) -> int:
        """Return the number of heads H for C = `inputs` channels; the default has one kernel per channel."""
        return inputs


@jax.tree_util.register_static
@record
class DenseConfig(EveryLayerAlike):
    """Dense convolutions, without options.

    Attributes:
      kind: dense convolutions.
    """

    kind: Literal["dense"] = "dense"


@jax.tree_util.register_static
@record
class SeparableConfig(EveryLayerAlike):
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
class _Headed(EveryLayerAlike):
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

    def heads_of(self, _inputs: int) -> int:
        """Return the number of heads H."""
        return self.heads


@jax.tree_util.register_static
@record
class LightweightConfig(_Headed):
    """Lightweight convolutions (Wu et al. 2019, section 3, equation 4).

    Attributes:
      heads: H, a divisor of the channels of every layer.
    """

    kind: Literal["lightweight"] = "lightweight"


@jax.tree_util.register_static
@record
class DynamicConfig(_Headed):
    """Dynamic convolutions (Wu et al. 2019, section 4, equation 5).

    Attributes:
      heads: H, a divisor of the channels of every layer.
    """

    kind: Literal["dynamic"] = "dynamic"


if TYPE_CHECKING:  # type checkers do not know which kinds are registered
    ConvolutionConfig = EveryLayerAlike
else:
    ConvolutionConfig = DenseConfig | SeparableConfig | LightweightConfig | DynamicConfig
"""The config of any kind of convolution: a union discriminated by `kind`. The default is dense."""


def _init_dense(key: Key, _cfg: DenseConfig, width: int, inputs: int, outputs: int, keep: float) -> Affine:
    return convolution.init(key, width, inputs, outputs, keep=keep)


def _dense(params: Affine, _cfg: DenseConfig, _x: Array, form: DenseForm) -> Valid:
    return partial(convolution.dense, params, form=form)


def _factored(name: str, deviation: Callable[[int, int], float]) -> ConvolutionFunctions:
    """Build a kind with two factors: taps ~ N(0, deviation(K, C)) of the kind `name`, P ~ N(0, sqrt(4 keep / C)).

    The factor 4 is the same as for every convolution before a GLU (`nn.convolution.init`).
    """
    taps = TAPS[name]

    def init(key: Key, cfg: Any, width: int, inputs: int, outputs: int, keep: float) -> depthwise.Factored:
        draw, heads = normal(deviation(width, inputs)), cfg.heads_of(inputs)
        return depthwise.init_factored(key, taps, draw, width, inputs, outputs, heads=heads, keep=4 * keep)

    def convolve(params: depthwise.Factored, cfg: Any, x: Array, _form: DenseForm) -> Valid:
        return depthwise.factored_convolution(params, taps, x, cfg.dilation)

    def dense(params: depthwise.Factored, cfg: Any) -> Affine | None:
        return None if cfg.dilation > 1 else depthwise.factored_as_dense(params, taps)

    return ConvolutionFunctions(init=init, convolve=convolve, dense=dense)


DenseConfig.functions = ConvolutionFunctions(_init_dense, _dense, lambda params, _: params)
# Deviations that preserve the variance, except for lightweight taps: an average over K positions has a smaller variance
# than one position. This is not corrected, because neighbouring positions become more similar from layer to layer. A
# factor that is right for one layer makes twenty layers explode (500 times at K = 7).
SeparableConfig.functions = _factored("separable", lambda width, _: width**-0.5)
LightweightConfig.functions = _factored("lightweight", lambda *_: 1.0)
DynamicConfig.functions = _factored("dynamic", lambda _, inputs: inputs**-0.5)


def register_convolution(
    config: type[Any],
    *,
    init: Callable[[Key, Any, int, int, int, float], Any],
    convolve: Callable[[Any, Any, Array, DenseForm], Valid],
    dense: Callable[[Any, Any], Affine | None] = lambda *_: None,
) -> None:
    """Register a custom kind of convolution for the rest of the process, so that `convolution=config()` uses it.

    Dictionaries with its kind, such as those in a `config.json`, can be read too, in processes that have registered it.
    On a mesh, parameters that are not listed in `training.sharding.RULES` need a rule in `MeshConfig.rules`.

    Args:
      config: a `record` with the attributes and methods of `EveryLayerAlike`, and a field `kind` whose default is the
        name of the kind. Defining the class and functions again, under the same name, replaces what was registered.
      init: (key, config, K, inputs, outputs, fraction that dropout keeps) -> parameters, as in `ConvolutionFunctions`.
      convolve: (parameters, config, x, form) -> the convolution of a padded input. Position t may read the R + 1 inputs
        from t on, where R is the reach.
      dense: (parameters, config) -> the equivalent dense convolution. Without it, a decoder's first layer is computed
        at each step of a search.

    Raises:
      ValueError: the kind is taken, the class is not a record of a kind, or it lacks an attribute of `EveryLayerAlike`.
    """
    missing = [name for name in vars(EveryLayerAlike) if not name.startswith("_") and not hasattr(config, name)]
    if missing:
        raise ValueError(f"{config.__name__} has no {', '.join(missing)}: inherit from `EveryLayerAlike`")
    add_kind(ConvolutionConfig, config)
    with contextlib.suppress(ValueError):  # the class already has the decorator
        jax.tree_util.register_static(config)
    config.functions = ConvolutionFunctions(init, convolve, dense)
