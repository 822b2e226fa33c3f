"""Layers of lightweight and dynamic convolutions, for encoder and decoder (Wu et al. 2019, sections 3 and 4)."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeVar

import flax.struct
import jax
import jax.numpy as jnp

from convs2s_jax.core.config import check, record
from convs2s_jax.nn import affine, embedding, layer_norm
from convs2s_jax.nn.affine import Affine, linear
from convs2s_jax.nn.convolution import Valid
from convs2s_jax.nn.depthwise import depthwise
from convs2s_jax.nn.dropout import dropout, split_key
from convs2s_jax.nn.embedding import Embedding, places
from convs2s_jax.nn.gate import glu
from convs2s_jax.nn.layer_norm import LayerNorm
from convs2s_jax.nn.padding import zero_padding
from convs2s_jax.nn.positions import sinusoidal
from convs2s_jax.nn.taps import TAPS, uniform
from convs2s_jax.nn.types import Array, Key

T = TypeVar("T")


@record
class LightConfig:
    """What both sides have in common.

    Attributes:
      layers: the kernel width K of each layer, from below.
      convolution: "lightweight" has one kernel for all positions, "dynamic" predicts one at each.
      conv_dim: C, the channels of the convolutions.
      heads: H, of the convolutions and of the attention; a divisor of conv_dim.
      glu: whether a gate stands before the convolution.
      ffn_dim: F, the units of the feed-forward part.
      norm_before: whether norms stand before the parts of a layer rather than after their residual sum.
      positions: "sinusoidal" or "learned".
      max_positions: rows of the position table, two more than the longest sequence with its end symbol.
      input_dropout: rate where a layer begins, beside the model's own rate, as the two that follow.
      relu_dropout: rate within the feed-forward part.
      weight_dropout: rate on the taps of the convolutions.
    """

    kind: Literal["light"] = "light"
    layers: tuple[int, ...] = (3, 7, 15, 31, 31, 31, 31)
    convolution: Literal["lightweight", "dynamic"] = "dynamic"
    conv_dim: int = 256
    heads: int = 4
    glu: bool = True
    ffn_dim: int = 512
    norm_before: bool = False
    positions: Literal["sinusoidal", "learned"] = "sinusoidal"
    max_positions: int = 1024
    input_dropout: float = 0.0
    relu_dropout: float = 0.0
    weight_dropout: float = 0.0

    def __post_init__(self) -> None:
        check(len(self.layers) > 0, "layers is empty: give the kernel width of one layer or more, such as [3, 7, 15]")
        for i, width in enumerate(self.layers):
            check(width >= 1, f"layers[{i}] is {width}: a convolution sees at least one position; use 1 or more")
        for name in ("conv_dim", "heads", "ffn_dim"):
            check(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}: use 1 or more")
        check(
            self.conv_dim % self.heads == 0,
            f"heads is {self.heads}: it shares the {self.conv_dim} channels of conv_dim out evenly; use a divisor",
        )
        check(self.max_positions >= 4, f"max_positions is {self.max_positions}: two rows are reserved; use 4 or more")
        for name in ("input_dropout", "relu_dropout", "weight_dropout"):
            rate = getattr(self, name)
            check(0.0 <= rate < 1.0, f"{name} is {rate}: a probability below 1; use 0.0 to 0.9")

    @property
    def max_length(self) -> int:
        """Longest sequence in tokens, its end symbol counted: two rows of the position table are reserved."""
        return self.max_positions - 2

    def check_dim(self, dim: int) -> None:
        """Refuse an E that sines and cosines cannot share."""
        check(
            self.positions != "sinusoidal" or (dim % 2 == 0 and dim >= 4),
            f"embedding_dim is {dim}: sinusoidal positions are half sines, half cosines; use an even number from 4 on, "
            "or learned positions",
        )


@flax.struct.dataclass
class LightConvolution:
    """Parameters of the first part of a layer.

    Attributes:
      map_in: [E -> C], or [E -> 2C] before a GLU.
      taps: of a kind of `nn.taps.TAPS`.
      map_out: [C -> E].
      norm: of the part.
    """

    map_in: Affine
    taps: Any
    map_out: Affine
    norm: LayerNorm


@flax.struct.dataclass
class FeedForward:
    """Parameters of the last part of a layer.

    Attributes:
      map_in: [E -> F].
      map_out: [F -> E].
      norm: of the part.
    """

    map_in: Affine
    map_out: Affine
    norm: LayerNorm


BOUNDS: dict[str, Callable[[int, int, int], float]] = {
    "lightweight": lambda width, _, heads: (6.0 / (width + heads * width)) ** 0.5,
    "dynamic": lambda _, channels, __: channels**-0.5,
}
"""Fresh taps are uniform within these bounds of K, C and H, as fairseq's: Xavier's, which counts K inputs and H K
outputs, and PyTorch's for linear maps."""


def init_embedding(key: Key, cfg: LightConfig, vocabulary: int, dim: int) -> Embedding:
    """Entries ~ N(0, 1 / sqrt(E)) of both tables."""
    rows = cfg.max_positions if cfg.positions == "learned" else None
    return embedding.init(key, vocabulary, dim, rows, std=dim**-0.5)


def embed(params: Embedding, cfg: LightConfig, tokens: Array, start: Array) -> Array:
    """e = sqrt(E) w + p; arguments and result as of `nn.embedding.embed`."""
    E = params.table.shape[1]
    e = params.table[tokens] * E**0.5
    table = jnp.asarray(sinusoidal(cfg.max_positions, E)) if params.positions is None else params.positions
    return e + table[places(tokens, start)].astype(e.dtype)


def init_norm_after(cfg: LightConfig, dim: int) -> LayerNorm | None:
    """The norm after the last layer, where the others stand before their parts."""
    return layer_norm.init(dim) if cfg.norm_before else None


def norm_after(params: LayerNorm | None, x: Array) -> Array:
    """X [..., E], normalised where there is such a norm."""
    return x if params is None else layer_norm.normalise(params, x)


def init_convolution(key: Key, cfg: LightConfig, width: int, dim: int) -> LightConvolution:
    """Maps uniform of Xavier, taps as their kind has them."""
    keys = jax.random.split(key, 3)
    draw = uniform(BOUNDS[cfg.convolution](width, cfg.conv_dim, cfg.heads))
    return LightConvolution(
        map_in=affine.xavier(keys[0], dim, 2 * cfg.conv_dim if cfg.glu else cfg.conv_dim),
        taps=TAPS[cfg.convolution].init(keys[1], width, cfg.conv_dim, cfg.heads, draw),
        map_out=affine.xavier(keys[2], cfg.conv_dim, dim),
        norm=layer_norm.init(dim),
    )


def init_feed_forward(key: Key, cfg: LightConfig, dim: int) -> FeedForward:
    """Maps uniform of Xavier."""
    keys = jax.random.split(key)
    map_in, map_out = affine.xavier(keys[0], dim, cfg.ffn_dim), affine.xavier(keys[1], cfg.ffn_dim, dim)
    return FeedForward(map_in=map_in, map_out=map_out, norm=layer_norm.init(dim))


def residual(
    norm: LayerNorm,
    cfg: LightConfig,
    x: Array,
    part: Callable[[Array], tuple[Array, T]],
    rate: float,
    key: Key | None,
) -> tuple[Array, T]:
    """norm(x + part(x)), or x + part(norm(x)) with the norm before; and what else the part made.

    The part has dropout `rate`.
    """
    y, made = part(layer_norm.normalise(norm, x) if cfg.norm_before else x)
    x = x + dropout(y, rate, key)
    return (x if cfg.norm_before else layer_norm.normalise(norm, x)), made


def convolve(
    params: LightConvolution,
    cfg: LightConfig,
    x: Array,
    padded: Callable[[Valid, Array], tuple[Array, T]],
    *,
    mask: Array | None = None,
    key: Key | None = None,
) -> tuple[Array, T]:
    """W_out conv(glu(W_in x)), with taps of what enters the convolution.

    Args:
      params: of the part.
      cfg: of the side.
      x: [N, T, E].
      padded: pads for the convolution (`nn.convolution`): (convolution, its input [N, T, C]) to its output and whatever
        else comes of it.
      mask: [N, T], True at real positions where others count as zeros.
      key: for dropout.

    Returns:
      [N, T, E] and whatever else came of `padded`.
    """
    input_key, taps_key = split_key(key, 2)
    z = linear(params.map_in, dropout(x, cfg.input_dropout, input_key))
    z = glu(z) if cfg.glu else z
    if mask is not None:
        z = zero_padding(z, mask)
    w = TAPS[cfg.convolution].taps(params.taps, z, cfg.weight_dropout, taps_key)
    z, made = padded(partial(depthwise, w), z)
    return linear(params.map_out, z), made


def feed_forward(params: FeedForward, cfg: LightConfig, x: Array, key: Key | None = None) -> Array:
    """W_out relu(W_in x) of each position, [N, T, E]."""
    return linear(params.map_out, dropout(jax.nn.relu(linear(params.map_in, x)), cfg.relu_dropout, key))
