"""Layers of LightConv and DynamicConv, shared by encoder and decoder (Wu et al. 2019, sections 3 and 4)."""

from collections.abc import Callable
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp

from convs2s_jax.core.config import check, record
from convs2s_jax.models.protocols import check_positions, check_rate, fields_after
from convs2s_jax.nn import affine, embedding, layer_norm, struct
from convs2s_jax.nn.affine import Affine, linear
from convs2s_jax.nn.dropout import dropout, split_key
from convs2s_jax.nn.embedding import Embedding
from convs2s_jax.nn.gate import glu
from convs2s_jax.nn.gradient import materialise_gradient
from convs2s_jax.nn.layer_norm import LayerNorm
from convs2s_jax.nn.padding import zero_padding
from convs2s_jax.nn.positions import sinusoidal
from convs2s_jax.nn.taps import TAPS, uniform
from convs2s_jax.nn.types import Array, Key

T = TypeVar("T")


@record
class LightConfig:
    """Config fields that encoder and decoder share.

    Attributes:
      layers: the kernel width K of each layer, from bottom to top.
      convolution: "lightweight" uses one kernel for all positions, "dynamic" predicts one at each position.
      conv_dim: number of channels C of the convolutions.
      heads: number of heads H of the convolutions and of the attention; a divisor of conv_dim.
      glu: whether a gated linear unit precedes the convolution.
      ffn_dim: number of units F of the feed-forward sublayer.
      norm_before: whether layer norm is applied before each sublayer (pre-norm) or after its residual sum (post-norm).
      positions: "sinusoidal" or "learned".
      max_positions: rows of the position table, two more than the longest sequence including its end symbol.
      input_dropout: dropout rate on the input of the convolution sublayer, in addition to the model's own rate.
      relu_dropout: dropout rate after the ReLU of the feed-forward sublayer.
      weight_dropout: dropout rate on the taps of the convolutions.
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
        check(len(self.layers) > 0, "layers is empty: set the kernel width of at least one layer, such as [3, 7, 15]")
        for i, width in enumerate(self.layers):
            check(width >= 1, f"layers[{i}] is {width}: a convolution sees at least one position; use 1 or more")
        for name in ("conv_dim", "heads", "ffn_dim"):
            check(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}: use 1 or more")
        check(
            self.conv_dim % self.heads == 0,
            f"heads is {self.heads}: heads split the {self.conv_dim} channels of conv_dim evenly; use a divisor",
        )
        check_positions(self.max_positions)
        for name in ("input_dropout", "relu_dropout", "weight_dropout"):
            check_rate(name, getattr(self, name))

    @property
    def max_length(self) -> int:
        """Maximum sequence length in tokens, end symbol included. Two rows of the position table are reserved."""
        return self.max_positions - 2

    @property
    def receptive_fields(self) -> tuple[int, ...]:
        """1 + sum (K - 1) over the layers up to each."""
        return fields_after(width - 1 for width in self.layers)

    def check_dim(self, dim: int) -> None:
        """Reject an E that cannot be divided between sines and cosines."""
        check(
            self.positions != "sinusoidal" or (dim % 2 == 0 and dim >= 4),
            f"embedding_dim is {dim}: sinusoidal positions are half sines, half cosines; use an even number of at "
            "least 4, or learned positions",
        )


@struct.dataclass
class LightConvolution:
    """Parameters of the convolution sublayer, the first of a layer.

    Attributes:
      map_in: [E -> C], or [E -> 2C] before a GLU.
      taps: parameters of an entry of `nn.taps.TAPS`.
      map_out: [C -> E].
      norm: layer norm of the sublayer.
    """

    map_in: Affine
    taps: Any
    map_out: Affine
    norm: LayerNorm


@struct.dataclass
class FeedForward:
    """Parameters of the feed-forward sublayer, the last of a layer.

    Attributes:
      map_in: [E -> F].
      map_out: [F -> E].
      norm: layer norm of the sublayer.
    """

    map_in: Affine
    map_out: Affine
    norm: LayerNorm


BOUNDS: dict[str, Callable[[int, int, int], float]] = {
    "lightweight": lambda width, _, heads: (6.0 / (width + heads * width)) ** 0.5,
    "dynamic": lambda _, channels, __: channels**-0.5,
}
"""Taps are initialised uniformly within these bounds, functions of K, C and H, as in fairseq. "lightweight" uses the
Xavier bound with K inputs and H K outputs, "dynamic" uses PyTorch's bound for linear maps."""


def init_embedding(key: Key, cfg: LightConfig, vocabulary: int, dim: int) -> Embedding:
    """Initialise both tables with entries ~ N(0, 1 / sqrt(E))."""
    rows = cfg.max_positions if cfg.positions == "learned" else None
    return embedding.init(key, vocabulary, dim, rows, std=dim**-0.5)


def embed(params: Embedding, cfg: LightConfig, tokens: Array, start: Array | None = None) -> Array:
    """Embed tokens: e = sqrt(E) w + p. Arguments and result are as in `nn.embedding.embed`."""
    E = params.table.shape[1]
    e = embedding.rows(params.table, tokens) * E**0.5
    table = jnp.asarray(sinusoidal(cfg.max_positions, E)) if params.positions is None else params.positions
    return e + embedding.position_embeddings(table, tokens, start).astype(e.dtype)


def init_norm_after(cfg: LightConfig, dim: int) -> LayerNorm | None:
    """Initialise the final layer norm of a pre-norm stack; None for post-norm sublayers."""
    return layer_norm.init(dim) if cfg.norm_before else None


def norm_after(params: LayerNorm | None, x: Array) -> Array:
    """Apply the final layer norm to x [..., E], if there is one."""
    return x if params is None else layer_norm.normalise(params, x)


def init_convolution(key: Key, cfg: LightConfig, width: int, dim: int) -> LightConvolution:
    """Initialise a convolution sublayer: Xavier-uniform linear maps, and taps as their kind initialises them."""
    keys = jax.random.split(key, 3)
    draw = uniform(BOUNDS[cfg.convolution](width, cfg.conv_dim, cfg.heads))
    return LightConvolution(
        map_in=affine.xavier(keys[0], dim, 2 * cfg.conv_dim if cfg.glu else cfg.conv_dim),
        taps=TAPS[cfg.convolution].init(keys[1], width, cfg.conv_dim, cfg.heads, draw),
        map_out=affine.xavier(keys[2], cfg.conv_dim, dim),
        norm=layer_norm.init(dim),
    )


def init_feed_forward(key: Key, cfg: LightConfig, dim: int) -> FeedForward:
    """Initialise a feed-forward sublayer with Xavier-uniform linear maps."""
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
    """Return norm(x + part(x)), or x + part(norm(x)) with pre-norm, and the second result of `part`.

    Dropout with `rate` is applied to the output of the sublayer `part`.
    """
    y, made = part(layer_norm.normalise(norm, x) if cfg.norm_before else x)
    x = x + dropout(materialise_gradient(y), rate, key)
    return (x if cfg.norm_before else layer_norm.normalise(norm, x)), made


def convolve(
    params: LightConvolution,
    cfg: LightConfig,
    x: Array,
    apply_taps: Callable[[Array, Array], tuple[Array, T]],
    *,
    mask: Array | None = None,
    key: Key | None = None,
) -> tuple[Array, T]:
    """Compute W_out conv(glu(W_in x)). Dynamic taps are predicted from the input of the convolution.

    Args:
      params: parameters of the sublayer.
      cfg: config of the encoder or decoder.
      x: [N, T, E].
      apply_taps: (taps, z [N, T, C]) -> the convolution of z, padded as in the encoder or decoder, and a second result.
      mask: [N, T], True at real positions; the others are set to zero.
      key: random key for dropout.

    Returns:
      [N, T, E] and the second result of `apply_taps`.
    """
    input_key, taps_key = split_key(key, 2)
    z = materialise_gradient(linear(params.map_in, dropout(x, cfg.input_dropout, input_key)))
    z = glu(z) if cfg.glu else z
    if mask is not None:
        z = zero_padding(z, mask)
    w = TAPS[cfg.convolution].taps(params.taps, z, cfg.weight_dropout, taps_key)
    z, made = apply_taps(w, z)
    return linear(params.map_out, z), made


def feed_forward(params: FeedForward, cfg: LightConfig, x: Array, key: Key | None = None) -> Array:
    """Compute W_out relu(W_in x) at each position, [N, T, E]."""
    z = jax.nn.relu(materialise_gradient(linear(params.map_in, x)))
    return linear(params.map_out, dropout(z, cfg.relu_dropout, key))
