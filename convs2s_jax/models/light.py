"""LightConv and DynamicConv: lightweight or dynamic convolutions whose kernels are shared by heads (Wu et al. 2019,
sections 3 and 4), feed-forward sublayers and, in the decoder, multi-head attention.
"""

import dataclasses
from functools import partial
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from convs2s_jax.core.config import check, record
from convs2s_jax.core.tokens import PAD
from convs2s_jax.models import kinds
from convs2s_jax.models.kinds import Cache, Memory, Options, check_rate, memory_of
from convs2s_jax.nn import affine, convolution, depthwise, embedding, layer_norm, multihead, struct
from convs2s_jax.nn.affine import Affine, linear
from convs2s_jax.nn.convolution import glu
from convs2s_jax.nn.cpu import materialise_gradient
from convs2s_jax.nn.depthwise import TAPS, uniform
from convs2s_jax.nn.dropout import dropout, split_key
from convs2s_jax.nn.embedding import Embedding, length_after
from convs2s_jax.nn.layer_norm import LayerNorm
from convs2s_jax.nn.masking import zero_padding
from convs2s_jax.nn.multihead import Multihead, SourceHeads
from convs2s_jax.nn.sinusoidal import sinusoidal
from convs2s_jax.nn.types import Array, Key


@record
class LightConfig(kinds.HasPositions):
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
        super().__post_init__()
        check(len(self.layers) > 0, "layers is empty: set the kernel width of at least one layer, such as [3, 7, 15]")
        for i, width in enumerate(self.layers):
            check(width >= 1, f"layers[{i}] is {width}: a convolution sees at least one position; use 1 or more")
        for name in ("conv_dim", "heads", "ffn_dim"):
            check(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}: use 1 or more")
        check(
            self.conv_dim % self.heads == 0,
            f"heads is {self.heads}: heads split the {self.conv_dim} channels of conv_dim evenly; use a divisor",
        )
        for name in ("input_dropout", "relu_dropout", "weight_dropout"):
            check_rate(name, getattr(self, name))

    @property
    def reaches(self) -> list[int]:
        """K - 1 for each layer."""
        return [width - 1 for width in self.layers]

    def check_dim(self, dim: int) -> None:
        """Reject an E that cannot be divided between sines and cosines."""
        check(
            self.positions != "sinusoidal" or (dim % 2 == 0 and dim >= 4),
            f"embedding_dim is {dim}: sinusoidal positions are half sines, half cosines; use an even number of at "
            "least 4, or learned positions",
        )


@struct.dataclass
class LightConvolution:
    """Parameters of the convolution sublayer, the first of a layer: maps [E -> C], or [E -> 2C] before a GLU, and
    [C -> E], the parameters of an entry of `nn.depthwise.TAPS`, and a layer norm.
    """

    map_in: Affine
    taps: Any
    map_out: Affine
    norm: LayerNorm


@struct.dataclass
class FeedForward:
    """Parameters of the feed-forward sublayer, the last of a layer: maps [E -> F -> E] and a layer norm."""

    map_in: Affine
    map_out: Affine
    norm: LayerNorm


@struct.dataclass
class SourceAttention:
    """Parameters of the source attention, the second sublayer of a decoder's layer: heads and a layer norm."""

    heads: Multihead
    norm: LayerNorm


@struct.dataclass
class LightBlock:
    """Parameters of one layer: its sublayers. `attention` is the `SourceAttention` of a decoder, None in an encoder."""

    convolution: LightConvolution
    attention: Any
    feed_forward: FeedForward


@struct.dataclass
class LightParams:
    """Parameters of an encoder or a decoder.

    Attributes:
      embedding: embedding of source or target tokens.
      blocks: the layers.
      norm: the final layer norm of a pre-norm stack; None for post-norm sublayers.
      output_kernel: kernel [E, V] of a decoder's softmax, which has no bias; None if it is the embedding table.
    """

    embedding: Embedding
    blocks: tuple[LightBlock, ...]
    norm: LayerNorm | None
    output_kernel: Array | None = None

    @property
    def output(self) -> Affine | Array:
        """The softmax layer as `nn.output.layer` reads it, with a bias of zeros."""
        if self.output_kernel is None:
            return jnp.zeros(len(self.embedding.table))
        return Affine(w=self.output_kernel, b=jnp.zeros(self.output_kernel.shape[1]))


def init(key: Key, cfg: LightConfig, vocabulary: int, dim: int, _rate: float) -> LightParams:
    """Initialise the embeddings ~ N(0, 1 / sqrt(E)) and the layers as in fairseq, for V = vocabulary and E = dim.

    Linear maps are Xavier-uniform. Parameters do not depend on dropout.
    """
    parts = 3 if isinstance(cfg, LightDecoderConfig) else 2
    keys = jax.random.split(key, parts * len(cfg.layers) + parts - 1)
    xavier, norm = affine.xavier, partial(layer_norm.init, dim)

    def block(width: int, keys: Key) -> LightBlock:
        attention = SourceAttention(multihead.init(keys[1], dim), norm()) if parts == 3 else None
        first, second = jax.random.split(keys[parts - 1])
        ffn = FeedForward(xavier(first, dim, cfg.ffn_dim), xavier(second, cfg.ffn_dim, dim), norm())
        return LightBlock(init_convolution(keys[0], cfg, width, dim), attention, ffn)

    own_kernel = isinstance(cfg, LightDecoderConfig) and not cfg.tied_output
    rows = cfg.max_positions if cfg.positions == "learned" else None
    return LightParams(
        embedding=embedding.init(keys[0], vocabulary, dim, rows, std=dim**-0.5),
        blocks=tuple(block(width, keys[parts * (i + 1) - 1 :]) for i, width in enumerate(cfg.layers)),
        norm=norm() if cfg.norm_before else None,
        output_kernel=dim**-0.5 * jax.random.normal(keys[1], (dim, vocabulary)) if own_kernel else None,
    )


def init_convolution(key: Key, cfg: LightConfig, width: int, dim: int) -> LightConvolution:
    """Initialise a convolution sublayer, with taps ~ U(-r, r).

    Lightweight taps have the Xavier bound r = sqrt(6 / (K + H K)) for K inputs and H K outputs, dynamic ones PyTorch's
    bound for linear maps, r = sqrt(1 / C).
    """
    keys = jax.random.split(key, 3)
    C, H = cfg.conv_dim, cfg.heads
    bound = (6.0 / (width + H * width)) ** 0.5 if cfg.convolution == "lightweight" else C**-0.5
    return LightConvolution(
        map_in=affine.xavier(keys[0], dim, 2 * C if cfg.glu else C),
        taps=TAPS[cfg.convolution].init(keys[1], width, C, H, uniform(bound)),
        map_out=affine.xavier(keys[2], C, dim),
        norm=layer_norm.init(dim),
    )


def embed(params: LightParams, cfg: LightConfig, tokens: Array, start: Array | None = None) -> Array:
    """Embed tokens: e = sqrt(E) w + p, in the dtype of the layers. Arguments are as in `nn.embedding.embed`."""
    own, E = params.embedding, params.embedding.table.shape[1]
    e = embedding.rows(own.table, tokens) * E**0.5
    table = jnp.asarray(sinusoidal(cfg.max_positions, E)) if own.positions is None else own.positions
    e += embedding.position_embeddings(table, tokens, start).astype(e.dtype)
    return e.astype(dtype_of(params))


def dtype_of(params: LightParams) -> Any:
    """Return the dtype of products."""
    return params.blocks[0].convolution.map_in.w.dtype


def sublayer_input(params: Any, cfg: LightConfig, x: Array) -> Array:
    """Return the input of a sublayer: x, or norm(x) with pre-norm."""
    return layer_norm.normalise(params.norm, x) if cfg.norm_before else x


def sublayer_output(params: Any, cfg: LightConfig, x: Array, y: Array, rate: float, key: Key | None) -> Array:
    """Return norm(x + dropout(y)) for the result y of a sublayer, or x + dropout(y) with pre-norm."""
    x = x + dropout(materialise_gradient(y), rate, key)
    return x if cfg.norm_before else layer_norm.normalise(params.norm, x)


def taps_and_input(
    params: LightConvolution, cfg: LightConfig, x: Array, key: Key | None, mask: Array | None = None
) -> tuple[Array, Array]:
    """Compute the taps of `nn.depthwise.taps` and the input of a convolution, z = glu(W_in x) [N, T, C].

    Dynamic taps are predicted from z. It is zero where the mask [N, T] is False.
    """
    input_key, taps_key = split_key(key, 2)
    z = materialise_gradient(
        linear(params.map_in, dropout(sublayer_input(params, cfg, x), cfg.input_dropout, input_key))
    )
    z = glu(z) if cfg.glu else z
    z = z if mask is None else zero_padding(z, mask)
    return depthwise.taps(TAPS[cfg.convolution], params.taps, z, cfg.weight_dropout, taps_key), z


def feed_forward(params: FeedForward, cfg: LightConfig, x: Array, key: Key | None) -> Array:
    """Compute W_out relu(W_in x) at each position, [N, T, E]."""
    z = jax.nn.relu(materialise_gradient(linear(params.map_in, sublayer_input(params, cfg, x))))
    return linear(params.map_out, dropout(z, cfg.relu_dropout, key))


@record
class LightEncoderConfig(LightConfig, kinds.EncoderConfig):
    """Encoder of lightweight or dynamic convolutions; seven layers in the paper."""


def encode(params: LightParams, cfg: LightEncoderConfig, src: Array, options: Options) -> Memory:
    """Encode source tokens into a memory whose keys and values are both the output of the last layer.

    Padding is set to zero before each convolution, so it acts like the end of the sentence. Dropout is applied to the
    embeddings and to the output of each sublayer.
    """
    mask, rate = src != PAD, options.rate
    keys = split_key(options.key, len(cfg.layers) + 1)

    def layer(width: int, block: LightBlock, x: Array, key: Key | None) -> Array:
        k, conv, ffn = split_key(key, 4), block.convolution, block.feed_forward
        w, z = taps_and_input(conv, cfg, x, k[0], mask)
        y = linear(conv.map_out, depthwise.depthwise(w, z, padding=((width - 1) // 2, width // 2)))
        x = sublayer_output(conv, cfg, x, y, rate, k[2])
        return sublayer_output(ffn, cfg, x, feed_forward(ffn, cfg, x, k[1]), rate, k[3])

    x = dropout(embed(params, cfg, src), rate, keys[0])
    for block, width, k in zip(params.blocks, cfg.layers, keys[1:], strict=True):
        x = options.execution.with_remat(partial(layer, width))(block, x, k)
    return memory_of(x if params.norm is None else layer_norm.normalise(params.norm, x), mask, options)


LightEncoderConfig.functions = kinds.EncoderFunctions(init, encode)


@record
class LightDecoderConfig(LightConfig, kinds.DecoderConfig):
    """Decoder of lightweight or dynamic convolutions; six layers in the paper.

    Attributes:
      tied_output: whether the softmax uses the embedding table.
      attention_dropout: dropout rate on the attention weights.
    """

    averages_attention: ClassVar[bool] = False  # as fairseq's

    layers: tuple[int, ...] = (3, 7, 15, 31, 31, 31)
    tied_output: bool = False
    attention_dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_rate("attention_dropout", self.attention_dropout)

    def check_dim(self, dim: int) -> None:
        """Reject an E that does not suit the positions or the number of attention heads."""
        super().check_dim(dim)
        check(
            dim % self.heads == 0,
            f"decoder.heads is {self.heads}: attention splits the {dim} of embedding_dim evenly; use a divisor",
        )

    @property
    def attention_names(self) -> tuple[str, ...]:
        """One name per layer, counted from 1."""
        return tuple(f"layer {i + 1}" for i in range(len(self.layers)))


def prepare(params: LightParams, cfg: LightDecoderConfig, memory: Memory) -> Memory:
    """Project the source for the attention of each layer, once for all steps and hypotheses.

    The keys of the result are the `SourceHeads` of each layer, and there are no values.
    """
    # so that the gradients of all layers are summed once
    keys, values = materialise_gradient(memory.keys), materialise_gradient(memory.values)
    heads = [multihead.map_source(block.attention.heads, cfg.heads, keys, values) for block in params.blocks]
    return dataclasses.replace(memory, keys=tuple(heads), values=(), prepared=True)


def init_cache(params: LightParams, cfg: LightDecoderConfig, _memory: Memory, rows: int) -> Cache:
    """Create the cache before the first token, with zero histories, so that the first steps see zeros on the left."""
    histories = tuple(jnp.zeros((rows, width - 1, cfg.conv_dim), dtype_of(params)) for width in cfg.layers)
    return Cache(length=jnp.zeros(rows, jnp.int32), histories=histories)


def advance(
    params: LightParams, cfg: LightDecoderConfig, memory: Memory, cache: Cache, tokens: Array, options: Options
) -> tuple[Array, tuple[Array, ...], Cache]:
    """Read target tokens and return features, the attention of each layer (the mean of its heads) and the next cache.

    Dropout is applied to the embeddings and to each sublayer.

    The softmax of a kernel always includes all its taps, even those on the zeros before the target. (In training only,
    fairseq truncates the kernels of dynamic convolutions to the length of the target before the softmax, if the target
    is shorter.)
    """
    keys, rate = split_key(options.key, len(cfg.layers) + 1), options.rate

    def layer(block: LightBlock, history: Array, source: SourceHeads, x: Array, key: Key | None) -> Any:
        k, conv, attention, ffn = split_key(key, 6), block.convolution, block.attention, block.feed_forward
        w, z = taps_and_input(conv, cfg, x, k[0])
        z, after = convolution.causal(partial(depthwise.depthwise, w), history, z)
        x = sublayer_output(conv, cfg, x, linear(conv.map_out, z), rate, k[3])
        q, dropped = sublayer_input(attention, cfg, x), cfg.attention_dropout
        y, a = multihead.attend(attention.heads, source, q, memory.mask, rate=dropped, key=k[1])
        x = sublayer_output(attention, cfg, x, y, rate, k[4])
        return sublayer_output(ffn, cfg, x, feed_forward(ffn, cfg, x, k[2]), rate, k[5]), after, a

    apply = options.execution.with_remat(layer)
    x = dropout(embed(params, cfg, tokens, cache.length), rate, keys[0])
    histories, weights = [], []
    for block, history, source, k in zip(params.blocks, cache.histories, memory.keys, keys[1:], strict=True):
        x, after, a = apply(block, history, source, x, k)
        histories.append(after)
        weights.append(a)
    x = x if params.norm is None else layer_norm.normalise(params.norm, x)
    return x, tuple(weights), Cache(length=length_after(cache.length, tokens), histories=tuple(histories))


LightDecoderConfig.functions = kinds.DecoderFunctions(init, init_cache, advance, prepare)
