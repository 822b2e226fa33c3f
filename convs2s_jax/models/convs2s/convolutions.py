"""The convolutions that blocks are made of: the config of each kind, and a table with one line for each.

`dense` is the convolution of the paper (section 3.2); the others are in two factors (`nn.factored`).
"""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple, Self

import jax

from convs2s_jax.core.config import add_kind, check, record
from convs2s_jax.nn import convolution, factored
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.convolution import DenseForm, Valid
from convs2s_jax.nn.taps import TAPS, normal
from convs2s_jax.nn.types import Array, Key

# Configs are static nodes of a tree, so that layers whose configs differ never share a loop (`convs2s.stack`).


class EveryLayerAlike:
    """Defaults that most kinds share; the config of a kind of one's own may inherit them."""

    @property
    def dilation(self) -> int:
        """Distance from tap to tap, in one layer."""
        return 1

    def at(self, _index: int) -> Self:
        """The config of the layer of this index, counted from 0."""
        return self

    def check_inputs(self, inputs: int) -> None:
        """Refuse a number of input channels; here any C = `inputs` will do."""

    def heads_of(self, inputs: int) -> int:
        """H of C = `inputs` channels: a kernel of its own for each channel."""
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
      dilations: distance between the taps of the first layer, of the second and so on, then from the start again;
        (1, 2, 4) for example.
    """

    kind: Literal["separable"] = "separable"
    dilations: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        check(len(self.dilations) > 0, "dilations is empty: name one at least, such as [1]")
        for dilation in self.dilations:
            check(dilation >= 1, f"dilations has {dilation}: a step from tap to tap; use 1 (no dilation) or more")

    def at(self, index: int) -> "SeparableConfig":
        """The config of one layer: its own dilation alone."""
        return SeparableConfig(dilations=(self.dilations[index % len(self.dilations)],))

    @property
    def dilation(self) -> int:
        """Distance from tap to tap, in one layer (`at`)."""
        return self.dilations[0]


@record
class _Headed(EveryLayerAlike):
    """Convolutions whose channels share the taps of heads.

    Attributes:
      heads: H, a divisor of the channels of every layer.
    """

    heads: int = 8

    def __post_init__(self) -> None:
        check(self.heads >= 1, f"heads is {self.heads}: channels share the kernels of heads; use 1 or more")

    def check_inputs(self, inputs: int) -> None:
        """Refuse C that H does not divide."""
        check(
            inputs % self.heads == 0,
            f"convolution.heads is {self.heads}, and a layer has {inputs} channels: heads have equal shares; use a "
            "divisor",
        )

    def heads_of(self, _inputs: int) -> int:
        """H."""
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


ConvolutionConfig = DenseConfig | SeparableConfig | LightweightConfig | DynamicConfig
"""Told apart by `kind`; without one, dense."""


class BlockConvolution(NamedTuple):
    """A kind of convolution: C channels to the D = 2 C' that a GLU reads. `cfg` is that of one layer.

    Attributes:
      init: (key, cfg, width K, inputs C, outputs D, keep) -> parameters; keep is the share of x that dropout retains.
      convolve: (parameters, cfg, x [B, T, C], form) -> the convolution for this x, which takes x padded (`centred` or
        `causal` of `nn.convolution`); its reach is (K - 1) cfg.dilation.
      dense: (parameters, cfg) -> the dense convolution of equal results, or None where there is none: tables of its
        products stand for the first layer of a decoder (`models.convs2s.lookup`).
    """

    init: Callable[[Key, Any, int, int, int, float], Any]
    convolve: Callable[[Any, Any, Array, DenseForm], Valid]
    dense: Callable[[Any, Any], Affine | None]


def _init_dense(key: Key, _cfg: DenseConfig, width: int, inputs: int, outputs: int, keep: float) -> Affine:
    return convolution.init(key, width, inputs, outputs, keep=keep)


def _dense(params: Affine, _cfg: DenseConfig, _x: Array, form: DenseForm) -> Valid:
    return partial(convolution.dense, params, form=form)


def _itself(params: Affine, _cfg: DenseConfig) -> Affine:
    return params


def _factored(name: str, deviation: Callable[[int, int], float]) -> BlockConvolution:
    """A kind in two factors: taps ~ N(0, deviation(K, C)) of the kind `name`, P ~ N(0, sqrt(4 keep / C)).

    The factor 4 is that of every convolution before a GLU (`nn.convolution.init`).
    """
    taps = TAPS[name]

    def init(key: Key, cfg: Any, width: int, inputs: int, outputs: int, keep: float) -> factored.Factored:
        draw, heads = normal(deviation(width, inputs)), cfg.heads_of(inputs)
        return factored.init(key, taps, draw, width=width, inputs=inputs, outputs=outputs, heads=heads, keep=4 * keep)

    def convolve(params: factored.Factored, cfg: Any, x: Array, _form: DenseForm) -> Valid:
        return factored.convolution(params, taps, x, cfg.dilation)

    def dense(params: factored.Factored, cfg: Any) -> Affine | None:
        return None if cfg.dilation > 1 else factored.dense(params, taps)

    return BlockConvolution(init=init, convolve=convolve, dense=dense)


CONVOLUTIONS: dict[str, BlockConvolution] = {
    "dense": BlockConvolution(init=_init_dense, convolve=_dense, dense=_itself),
    "separable": _factored("separable", lambda width, _: width**-0.5),
    "lightweight": _factored("lightweight", lambda *_: 1.0),
    "dynamic": _factored("dynamic", lambda _, inputs: inputs**-0.5),
}
"""Deviations keep the variance, but for lightweight taps: a mean over K positions has less of it than one position.
Nothing makes up for that: neighbours grow alike from layer to layer, so that a factor that is right for one layer makes
twenty explode (500 times at K = 7)."""


def _no_dense(_params: Any, _cfg: Any) -> None:
    return None


def register_convolution(
    config: type[Any],
    *,
    init: Callable[[Key, Any, int, int, int, float], Any],
    convolve: Callable[[Any, Any, Array, DenseForm], Valid],
    dense: Callable[[Any, Any], Affine | None] = _no_dense,
) -> None:
    """Add a kind of convolution for the rest of the process: `convolution=config()` then builds blocks of it.

    Dictionaries with its kind are read as well, as those of a `config.json`, in processes that registered it before. On
    a mesh, parameters that have no line in `training.sharding.RULES` need a rule in `MeshConfig.rules`.

    Args:
      config: a `record` with the attributes and methods of `EveryLayerAlike`, and a field `kind` with its name as
        default. Defining class and functions again, under the same name, takes the place of what was registered.
      init: (key, config, K, inputs, outputs, share that dropout keeps) -> parameters, as in `BlockConvolution`.
      convolve: (parameters, config, x, form) -> the convolution of a padded input; position t may read the R + 1 inputs
        from t on, R the reach.
      dense: (parameters, config) -> the dense convolution of equal results; without one, a decoder's first layer is
        computed at each step of a search.

    Raises:
      ValueError: the kind is taken, or the class is no record of a kind, or lacks what `EveryLayerAlike` has.
    """
    missing = [name for name in vars(EveryLayerAlike) if not name.startswith("_") and not hasattr(config, name)]
    if missing:
        raise ValueError(f"{config.__name__} has no {', '.join(missing)}: let it inherit `EveryLayerAlike`")
    add_kind(ConvolutionConfig, config)
    with contextlib.suppress(ValueError):  # the class has the decorator already
        jax.tree_util.register_static(config)
    CONVOLUTIONS[config.kind] = BlockConvolution(init, convolve, dense)
