"""The LightConv and DynamicConv decoder: lightweight or dynamic convolutions, multi-head attention (Wu et al. 2019)."""

from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from convs2s_jax.core.config import check, record
from convs2s_jax.models.execution import DEFAULT, ExecutionConfig
from convs2s_jax.models.light import layers
from convs2s_jax.models.light.layers import FeedForward, LightConfig, LightConvolution, residual
from convs2s_jax.models.memory import Memory
from convs2s_jax.models.protocols import DecoderConfig, check_rate
from convs2s_jax.nn import convolution, draws, layer_norm, multihead, struct
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.depthwise import depthwise
from convs2s_jax.nn.dropout import dropout, split_key
from convs2s_jax.nn.embedding import Embedding, length_after
from convs2s_jax.nn.gradient import materialise_gradient
from convs2s_jax.nn.layer_norm import LayerNorm
from convs2s_jax.nn.multihead import Multihead, SourceHeads
from convs2s_jax.nn.sharded_params import any_sharded, gather
from convs2s_jax.nn.types import Array, Key, accumulation_dtype


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


@struct.dataclass
class SourceAttention:
    """Parameters of the source attention, the second sublayer.

    Attributes:
      heads: the multi-head attention.
      norm: layer norm of the sublayer.
    """

    heads: Multihead
    norm: LayerNorm


@struct.dataclass
class LightDecoderBlock:
    """Parameters of one layer: its three sublayers.

    Attributes:
      convolution: the sublayer that reads the target.
      attention: the sublayer that reads the source.
      feed_forward: the feed-forward sublayer.
    """

    convolution: LightConvolution
    attention: SourceAttention
    feed_forward: FeedForward


@struct.dataclass
class LightDecoderParams:
    """Parameters of the decoder.

    Attributes:
      embedding: embedding of target tokens.
      blocks: the layers.
      norm: the final layer norm of a pre-norm stack; None for post-norm sublayers.
      output_kernel: kernel [E, V] of the softmax, which has no bias; None if it is the embedding table.
    """

    embedding: Embedding
    blocks: tuple[LightDecoderBlock, ...]
    norm: LayerNorm | None
    output_kernel: Array | None


@struct.dataclass
class LightDecoderCache:
    """The decoder state after the target tokens read so far.

    Attributes:
      length: [N], real tokens read.
      histories: the last K - 1 inputs of the convolution of each layer, [N, K - 1, C].
    """

    length: Array
    histories: tuple[Array, ...]


@struct.dataclass
class LightMemory:
    """The memory, projected for the attention of each layer.

    Attributes:
      sources: projected keys and values of each layer.
      mask: [B, S], True at real source positions.
    """

    sources: tuple[SourceHeads, ...]
    mask: Array


def init(key: Key, cfg: LightDecoderConfig, *, vocabulary: int, dim: int, **_: object) -> LightDecoderParams:
    """Initialise parameters as in fairseq: V = vocabulary, E = dim. They do not depend on dropout."""
    keys = jax.random.split(key, 3 * len(cfg.layers) + 2)
    return LightDecoderParams(
        embedding=layers.init_embedding(keys[0], cfg, vocabulary, dim),
        blocks=tuple(
            LightDecoderBlock(
                convolution=layers.init_convolution(keys[3 * i + 2], cfg, width, dim),
                attention=SourceAttention(heads=multihead.init(keys[3 * i + 3], dim), norm=layer_norm.init(dim)),
                feed_forward=layers.init_feed_forward(keys[3 * i + 4], cfg, dim),
            )
            for i, width in enumerate(cfg.layers)
        ),
        norm=layers.init_norm_after(cfg, dim),
        output_kernel=None if cfg.tied_output else dim**-0.5 * draws.normal(keys[1], (dim, vocabulary)),
    )


def prepare(params: LightDecoderParams, cfg: LightDecoderConfig, memory: Memory) -> LightMemory:
    """Project the source for the attention of each layer, once for all steps and hypotheses."""
    # so that the gradients of all layers are summed once
    keys, values = materialise_gradient(memory.keys), materialise_gradient(memory.values)
    sources = [multihead.map_source(gather(block.attention.heads), cfg.heads, keys, values) for block in params.blocks]
    return LightMemory(sources=tuple(sources), mask=memory.mask)


def init_cache(
    params: LightDecoderParams, cfg: LightDecoderConfig, _memory: LightMemory, rows: int
) -> LightDecoderCache:
    """Create the cache before the first token, with zero histories, so that the first steps see zeros on the left."""
    dtype = params.blocks[0].convolution.map_in.w.dtype
    histories = [jnp.zeros((rows, width - 1, cfg.conv_dim), dtype) for width in cfg.layers]
    return LightDecoderCache(length=jnp.zeros(rows, jnp.int32), histories=tuple(histories))


def advance(
    params: LightDecoderParams,
    cfg: LightDecoderConfig,
    memory: LightMemory,
    cache: LightDecoderCache,
    tokens: Array,
    *,
    rate: float,
    key: Key | None = None,
    execution: ExecutionConfig = DEFAULT,
) -> tuple[Array, tuple[Array, ...], LightDecoderCache]:
    """Read target tokens and return features, the attention of each layer (the mean of its heads) and the next cache.

    Arguments and results are as in `protocols.DecoderSteps`. Dropout is applied to the embeddings and to each sublayer.
    Of `execution`, only `remat` has an effect, on each layer.

    The softmax of a kernel always includes all its taps, even those on the zeros before the target. (In training only,
    fairseq truncates the kernels of dynamic convolutions to the length of the target before the softmax, if the target
    is shorter.)
    """
    keys = split_key(key, len(cfg.layers) + 1)

    def layer(block: LightDecoderBlock, history: Array, source: SourceHeads, x: Array, key: Key | None) -> Any:
        block, k = gather(block), split_key(key, 6)

        def causal(w: Array, z: Array) -> tuple[Array, Array]:
            return convolution.causal(partial(depthwise, w), history, z)

        def convolve(x: Array) -> tuple[Array, Array]:
            return layers.convolve(block.convolution, cfg, x, causal, key=k[0])

        def attention(x: Array) -> tuple[Array, Array]:
            heads, dropped = block.attention.heads, cfg.attention_dropout
            return multihead.attend(heads, source, x, memory.mask, rate=dropped, key=k[1])

        def feed_forward(x: Array) -> tuple[Array, None]:
            return layers.feed_forward(block.feed_forward, cfg, x, k[2]), None

        x, after = residual(block.convolution.norm, cfg, x, convolve, rate, k[3])
        x, a = residual(block.attention.norm, cfg, x, attention, rate, k[4])
        x, _ = residual(block.feed_forward.norm, cfg, x, feed_forward, rate, k[5])
        return x, after, a

    apply = execution.with_remat(layer, sharded=any_sharded(params.blocks))
    dtype = params.blocks[0].convolution.map_in.w.dtype
    x = dropout(layers.embed(params.embedding, cfg, tokens, cache.length).astype(dtype), rate, keys[0])
    histories, weights = [], []
    for block, history, source, k in zip(params.blocks, cache.histories, memory.sources, keys[1:], strict=True):
        x, history_after, a = apply(block, history, source, x, k)
        histories.append(history_after)
        weights.append(a)
    after = LightDecoderCache(length=length_after(cache.length, tokens), histories=tuple(histories))
    return layers.norm_after(params.norm, x), tuple(weights), after


def output_layer(params: LightDecoderParams, dtype: DTypeLike) -> Affine:
    """Return the softmax layer: the embedding table or a separate kernel, without a bias."""
    kernel = params.embedding.table.T if params.output_kernel is None else params.output_kernel
    return Affine(w=kernel.astype(dtype), b=jnp.zeros(kernel.shape[1], accumulation_dtype(dtype)))
