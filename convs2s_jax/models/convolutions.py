"""The interface of convolutions for ConvS2S blocks, and `dense`, that of the paper (section 3.2).

A kind is a config that names its functions. `models.factored_convolutions` has the others, and the list of all.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, Self

from convs2s_jax.core.config import record
from convs2s_jax.nn import convolution
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.convolution import DenseForm, Valid
from convs2s_jax.nn.types import Array, Key


class ConvolutionFunctions(NamedTuple):
    """A kind of convolution, from C channels to the D = 2 C' that a GLU reads. `cfg` is the config of one layer.

    Attributes:
      init: (key, cfg, width K, inputs C, outputs D, keep) -> parameters; keep is the fraction of x that dropout keeps.
      convolve: (parameters, cfg, x [B, T, C], form) -> the convolution for this x, which is called with x padded
        (`centred` or `causal` of `nn.convolution`). Position t reads inputs t to t + R, R = (K - 1) cfg.dilation.
      dense: (parameters, cfg) -> the equivalent dense convolution, or None if there is none. Tables of its products
        replace the first layer of a decoder in a search (`models.convs2s_fast`).
    """

    init: Callable[[Key, Any, int, int, int, float], Any]
    convolve: Callable[[Any, Any, Array, DenseForm], Valid]
    dense: Callable[[Any, Any], Affine | None] = lambda *_: None


class ConvolutionKind:
    """Base class of the configs of convolutions.

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


@record
class DenseConfig(ConvolutionKind):
    """Dense convolutions, without options.

    Attributes:
      kind: dense convolutions.
    """

    kind: Literal["dense"] = "dense"


DenseConfig.functions = ConvolutionFunctions(
    init=lambda key, _cfg, width, inputs, outputs, keep: convolution.init(key, width, inputs, outputs, keep=keep),
    convolve=lambda params, _cfg, _x, form: partial(convolution.dense, params, form=form),
    dense=lambda params, _cfg: params,
)
