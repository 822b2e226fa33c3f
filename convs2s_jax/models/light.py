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
from convs2s_jax.models.kinds import (
    Cache,
    DecoderConfig,
    DecoderFunctions,
    EncoderConfig,
    EncoderFunctions,
    Memory,
    Options,
    check_positions,
    check_rate,
    fields_after,
)
from convs2s_jax.nn import affine, convolution, embedding, layer_norm, multihead, struct
from convs2s_jax.nn.affine import Affine, linear
from convs2s_jax.nn.convolution import glu
from convs2s_jax.nn.cpu import materialise_gradient
from convs2s_jax.nn.depthwise import TAPS, depthwise, uniform
from convs2s_jax.nn.dropout import dropout, split_key
from convs2s_jax.nn.embedding import Embedding, length_after, sinusoidal
from convs2s_jax.nn.gradient import scale_gradient
from convs2s_jax.nn.layer_norm import LayerNorm
from convs2s_jax.nn.masking import mean, zero_padding
from convs2s_jax.nn.multihead import Multihead, SourceHeads
from convs2s_jax.nn.types import Array, Key


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
      taps: parameters of an entry of `nn.depthwise.TAPS`.
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


@struct.dataclass
class SourceAttention:
    """Parameters of the source attention, the second sublayer of a decoder's layer.

    Attributes:
      heads: the multi-head attention.
      norm: layer norm of the sublayer.
    """

    heads: Multihead
    norm: LayerNorm


@struct.dataclass
class LightBlock:
    """Parameters of one layer: its sublayers.

    Attributes:
      convolution: the sublayer that reads the sequence itself.
      attention: the `SourceAttention` of a decoder; None in an encoder.
      feed_forward: the feed-forward sublayer.
    """

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


def init(key: Key, cfg: LightConfig, vocabulary: int, dim: int, *, attends: bool) -> LightParams:
    """Initialise the embeddings ~ N(0, 1 / sqrt(E)) and the layers as in fairseq, for V = vocabulary and E = dim.

    The second key is for the softmax layer of a decoder.
    """
    parts = 3 if attends else 2
    keys = jax.random.split(key, parts * len(cfg.layers) + parts - 1)
    rows = cfg.max_positions if cfg.positions == "learned" else None

    def block(width: int, keys: Key) -> LightBlock:
        attention = SourceAttention(multihead.init(keys[1], dim), layer_norm.init(dim)) if attends else None
        feed_forward = init_feed_forward(keys[parts - 1], cfg, dim)
        return LightBlock(init_convolution(keys[0], cfg, width, dim), attention, feed_forward)

    return LightParams(
        embedding=embedding.init(keys[0], vocabulary, dim, rows, std=dim**-0.5),
        blocks=tuple(block(width, keys[parts * (i + 1) - 1 :]) for i, width in enumerate(cfg.layers)),
        norm=layer_norm.init(dim) if cfg.norm_before else None,
    )


def embed(params: Embedding, cfg: LightConfig, tokens: Array, start: Array | None = None) -> Array:
    """Embed tokens: e = sqrt(E) w + p. Arguments and result are as in `nn.embedding.embed`."""
    E = params.table.shape[1]
    e = embedding.rows(params.table, tokens) * E**0.5
    table = jnp.asarray(sinusoidal(cfg.max_positions, E)) if params.positions is None else params.positions
    return e + embedding.position_embeddings(table, tokens, start).astype(e.dtype)


def init_convolution(key: Key, cfg: LightConfig, width: int, dim: int) -> LightConvolution:
    """Initialise a convolution sublayer: Xavier-uniform linear maps, and taps ~ U(-r, r) as in fairseq.

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


def init_feed_forward(key: Key, cfg: LightConfig, dim: int) -> FeedForward:
    """Initialise a feed-forward sublayer with Xavier-uniform linear maps."""
    keys = jax.random.split(key)
    map_in, map_out = affine.xavier(keys[0], dim, cfg.ffn_dim), affine.xavier(keys[1], cfg.ffn_dim, dim)
    return FeedForward(map_in=map_in, map_out=map_out, norm=layer_norm.init(dim))


def sublayer_input(norm: LayerNorm, cfg: LightConfig, x: Array) -> Array:
    """Return the input of a sublayer: x, or norm(x) with pre-norm."""
    return layer_norm.normalise(norm, x) if cfg.norm_before else x


def sublayer_output(norm: LayerNorm, cfg: LightConfig, x: Array, y: Array, rate: float, key: Key | None) -> Array:
    """Return norm(x + dropout(y)) for the result y of a sublayer, or x + dropout(y) with pre-norm."""
    x = x + dropout(materialise_gradient(y), rate, key)
    return x if cfg.norm_before else layer_norm.normalise(norm, x)


def taps_and_input(
    params: LightConvolution, cfg: LightConfig, x: Array, key: Key | None, mask: Array | None = None
) -> tuple[Array, Array]:
    """Compute the input of a convolution, z = glu(W_in x), and its taps. Dynamic taps are predicted from z.

    Args:
      params: parameters of the sublayer.
      cfg: config of the encoder or decoder.
      x: [N, T, E].
      key: random key for dropout.
      mask: [N, T], True at real positions; the others are set to zero.

    Returns:
      Taps as in `nn.depthwise.TapKind`, and z [N, T, C].
    """
    input_key, taps_key = split_key(key, 2)
    z = materialise_gradient(linear(params.map_in, dropout(x, cfg.input_dropout, input_key)))
    z = glu(z) if cfg.glu else z
    if mask is not None:
        z = zero_padding(z, mask)
    return TAPS[cfg.convolution].taps(params.taps, z, cfg.weight_dropout, taps_key), z


def feed_forward(params: FeedForward, cfg: LightConfig, x: Array, key: Key | None = None) -> Array:
    """Compute W_out relu(W_in x) at each position, [N, T, E]."""
    z = jax.nn.relu(materialise_gradient(linear(params.map_in, x)))
    return linear(params.map_out, dropout(z, cfg.relu_dropout, key))


@record
class LightEncoderConfig(LightConfig, EncoderConfig):
    """Encoder of lightweight or dynamic convolutions; seven layers in the paper."""


def init_encoder(key: Key, cfg: LightEncoderConfig, vocabulary: int, dim: int, _rate: float) -> LightParams:
    """Initialise parameters. They do not depend on dropout."""
    return init(key, cfg, vocabulary, dim, attends=False)


def encode(params: LightParams, cfg: LightEncoderConfig, src: Array, options: Options) -> Memory:
    """Encode source tokens into a memory whose keys and values are both the output of the last layer.

    Padding is set to zero before each convolution, so it acts like the end of the sentence. Dropout is applied to the
    embeddings and to the output of each sublayer. Of `options.execution`, only `remat` has an effect, on each layer.
    """
    mask, rate = src != PAD, options.rate
    keys = split_key(options.key, len(cfg.layers) + 1)

    def layer(block: LightBlock, width: int, x: Array, key: Key | None) -> Array:
        k = split_key(key, 4)
        conv, ffn = block.convolution, block.feed_forward
        w, z = taps_and_input(conv, cfg, sublayer_input(conv.norm, cfg, x), k[0], mask)
        y = linear(conv.map_out, depthwise(w, z, padding=((width - 1) // 2, width // 2)))
        x = sublayer_output(conv.norm, cfg, x, y, rate, k[2])
        y = feed_forward(ffn, cfg, sublayer_input(ffn.norm, cfg, x), k[1])
        return sublayer_output(ffn.norm, cfg, x, y, rate, k[3])

    apply = options.execution.with_remat(layer, static=(1,))
    dtype = params.blocks[0].convolution.map_in.w.dtype
    x = dropout(embed(params.embedding, cfg, src).astype(dtype), rate, keys[0])
    for block, width, k in zip(params.blocks, cfg.layers, keys[1:], strict=True):
        x = apply(block, width, x, k)
    x = x if params.norm is None else layer_norm.normalise(params.norm, x)
    z = scale_gradient(zero_padding(x, mask), options.gradient_scale)
    return Memory(keys=z, values=z, mask=mask, summary=mean(z, mask))


LightEncoderConfig.functions = EncoderFunctions(init_encoder, encode)


@record
class LightDecoderConfig(LightConfig, DecoderConfig):
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


def init_decoder(key: Key, cfg: LightDecoderConfig, vocabulary: int, dim: int, _rate: float) -> LightParams:
    """Initialise parameters. They do not depend on dropout."""
    params = init(key, cfg, vocabulary, dim, attends=True)
    if cfg.tied_output:
        return params
    kernel_key = jax.random.split(key, 3 * len(cfg.layers) + 2)[1]
    return dataclasses.replace(params, output_kernel=dim**-0.5 * jax.random.normal(kernel_key, (dim, vocabulary)))


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
    dtype = params.blocks[0].convolution.map_in.w.dtype
    histories = tuple(jnp.zeros((rows, width - 1, cfg.conv_dim), dtype) for width in cfg.layers)
    return Cache(length=jnp.zeros(rows, jnp.int32), histories=histories)


def advance(
    params: LightParams, cfg: LightDecoderConfig, memory: Memory, cache: Cache, tokens: Array, options: Options
) -> tuple[Array, tuple[Array, ...], Cache]:
    """Read target tokens and return features, the attention of each layer (the mean of its heads) and the next cache.

    Dropout is applied to the embeddings and to each sublayer. Of `options.execution`, only `remat` has an effect, on
    each layer.

    The softmax of a kernel always includes all its taps, even those on the zeros before the target. (In training only,
    fairseq truncates the kernels of dynamic convolutions to the length of the target before the softmax, if the target
    is shorter.)
    """
    keys, rate = split_key(options.key, len(cfg.layers) + 1), options.rate

    def layer(block: LightBlock, history: Array, source: SourceHeads, x: Array, key: Key | None) -> Any:
        k = split_key(key, 6)
        conv, attention, ffn = block.convolution, block.attention, block.feed_forward
        w, z = taps_and_input(conv, cfg, sublayer_input(conv.norm, cfg, x), k[0])
        z, after = convolution.causal(partial(depthwise, w), history, z)
        x = sublayer_output(conv.norm, cfg, x, linear(conv.map_out, z), rate, k[3])
        q, dropped = sublayer_input(attention.norm, cfg, x), cfg.attention_dropout
        y, a = multihead.attend(attention.heads, source, q, memory.mask, rate=dropped, key=k[1])
        x = sublayer_output(attention.norm, cfg, x, y, rate, k[4])
        y = feed_forward(ffn, cfg, sublayer_input(ffn.norm, cfg, x), k[2])
        return sublayer_output(ffn.norm, cfg, x, y, rate, k[5]), after, a

    apply = options.execution.with_remat(layer)
    dtype = params.blocks[0].convolution.map_in.w.dtype
    x = dropout(embed(params.embedding, cfg, tokens, cache.length).astype(dtype), rate, keys[0])
    histories, weights = [], []
    for block, history, source, k in zip(params.blocks, cache.histories, memory.keys, keys[1:], strict=True):
        x, history_after, a = apply(block, history, source, x, k)
        histories.append(history_after)
        weights.append(a)
    x = x if params.norm is None else layer_norm.normalise(params.norm, x)
    return x, tuple(weights), Cache(length=length_after(cache.length, tokens), histories=tuple(histories))


LightDecoderConfig.functions = DecoderFunctions(init_decoder, init_cache, advance, prepare)
