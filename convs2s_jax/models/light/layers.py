"""Layers of lightweight and dynamic convolutions, on both sides (Wu et al. 2019, sections 3 and 4)."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from convs2s_jax.core.config import check, record
from convs2s_jax.models.light.records import Convolution, Dynamic, FeedForward, Lightweight
from convs2s_jax.nn import affine, depthwise, embedding, layer_norm
from convs2s_jax.nn.affine import linear
from convs2s_jax.nn.dropout import dropout, split
from convs2s_jax.nn.embedding import Embedding, places
from convs2s_jax.nn.gate import glu
from convs2s_jax.nn.layer_norm import LayerNorm
from convs2s_jax.nn.padding import zero_padding
from convs2s_jax.nn.positions import sinusoidal
from convs2s_jax.nn.types import Array, Key


@record
class LightConfig:
    """What both sides have in common.

    layers: the kernel width K of each, from below; convolution: kernels for all positions or predicted at each;
    conv_dim: C; heads: H, of the convolutions and of the attention; glu: whether a gate stands before the convolution;
    ffn_dim: F; norm_before: norms before the parts of a layer rather than after their residual sum; positions and
    max_positions: kind and rows of the table, two more than the longest sequence with its end symbol.
    Dropout beside the model's rate: input_dropout, where a layer begins; relu_dropout, within the feed-forward part;
    weight_dropout, on the taps of kernels.
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


class Kernels(NamedTuple):
    """A kind of convolution.

    init(key, width K, channels C, heads H) -> its parameters.
    weights(params, x [N, T, C], *, rate, key) -> kernels [K, H] or [N, T, K, H] for the positions of x.
    """

    init: Callable[..., Any]
    weights: Callable[..., Array]


def _init_lightweight(key: Key, width: int, channels: int, heads: int) -> Lightweight:
    """Uniform of Xavier, where fairseq counts K inputs and H K outputs."""
    del channels
    bound = (6.0 / (width + heads * width)) ** 0.5
    return Lightweight(scores=jax.random.uniform(key, (width, heads), minval=-bound, maxval=bound))


def _lightweight_weights(params: Lightweight, x: Array, *, rate: float, key: Key | None) -> Array:
    """softmax_K(w), section 3; with dropout each sentence loses taps of its own, the same at all positions."""
    w = depthwise.softmax(params.scores)
    if key is None or rate == 0.0:
        return w
    rows = dropout(jnp.broadcast_to(w, (len(x), *w.shape)), rate, key)
    return jnp.broadcast_to(rows[:, None], (*x.shape[:2], *w.shape))


def _init_dynamic(key: Key, width: int, channels: int, heads: int) -> Dynamic:
    """U(-1/sqrt(C), 1/sqrt(C)), PyTorch's for linear maps, which fairseq leaves here."""
    bound = channels**-0.5
    return Dynamic(maker=jax.random.uniform(key, (channels, width, heads), minval=-bound, maxval=bound))


def _dynamic_weights(params: Dynamic, x: Array, *, rate: float, key: Key | None) -> Array:
    """Of each position, with dropped taps of its own."""
    return dropout(depthwise.predicted(params.maker, x), rate, key)


KERNELS: dict[str, Kernels] = {
    "lightweight": Kernels(init=_init_lightweight, weights=_lightweight_weights),
    "dynamic": Kernels(init=_init_dynamic, weights=_dynamic_weights),
}


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


def init_convolution(key: Key, cfg: LightConfig, width: int, dim: int) -> Convolution:
    """Maps uniform of Xavier, the kernel as its kind has it."""
    keys = jax.random.split(key, 3)
    return Convolution(
        map_in=affine.xavier(keys[0], dim, 2 * cfg.conv_dim if cfg.glu else cfg.conv_dim),
        kernel=KERNELS[cfg.convolution].init(keys[1], width, cfg.conv_dim, cfg.heads),
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
    part: Callable[[Array], tuple[Array, Any]],
    rate: float,
    key: Key | None,
) -> tuple[Array, Any]:
    """norm(x + part(x)), or x + part(norm(x)) with the norm before; and what else the part made.

    The part has dropout `rate`.
    """
    y, made = part(layer_norm.normalise(norm, x) if cfg.norm_before else x)
    x = x + dropout(y, rate, key)
    return (x if cfg.norm_before else layer_norm.normalise(norm, x)), made


def convolve(
    params: Convolution,
    cfg: LightConfig,
    x: Array,
    over: Callable[[Callable[[Array], Array], Array], tuple[Array, Any]],
    *,
    mask: Array | None = None,
    key: Key | None = None,
) -> tuple[Array, Any]:
    """W_out conv(glu(W_in x)), the kernel made of what enters the convolution.

    Args:
      params: of the part.
      cfg: of the side.
      x: [N, T, E].
      over: where the convolution looks: (a valid one, its input [N, T, C]) to its output and what else comes of it.
      mask: [N, T], True at real positions where others count as zeros.
      key: for dropout.

    Returns:
      [N, T, E] and what else came of `over`.
    """
    input_key, weight_key = split(key, 2)
    z = linear(params.map_in, dropout(x, cfg.input_dropout, input_key))
    z = glu(z) if cfg.glu else z
    if mask is not None:
        z = zero_padding(z, mask)
    w = KERNELS[cfg.convolution].weights(params.kernel, z, rate=cfg.weight_dropout, key=weight_key)
    z, made = over(partial(depthwise.valid if w.ndim == 2 else depthwise.dynamic, w), z)
    return linear(params.map_out, z), made


def feed_forward(params: FeedForward, cfg: LightConfig, x: Array, key: Key | None = None) -> Array:
    """W_out relu(W_in x) of each position, [N, T, E]."""
    return linear(params.map_out, dropout(jax.nn.relu(linear(params.map_in, x)), cfg.relu_dropout, key))
