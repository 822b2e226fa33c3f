"""The convolutional decoder with multi-step attention (sections 3.2 and 3.3)."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from convs2s_jax.core.config import check, record
from convs2s_jax.core.tokens import PAD
from convs2s_jax.models import output
from convs2s_jax.models.convs2s import lookup as tables
from convs2s_jax.models.convs2s.convolutions import CONVOLUTIONS, ConvolutionConfig
from convs2s_jax.models.convs2s.dense import DenseConfig
from convs2s_jax.models.convs2s.layers import ConvLayer, add_residual, check_layers, init_layer, residual, sizes
from convs2s_jax.models.convs2s.lookup import Words
from convs2s_jax.models.convs2s.records import Block, ConvDecoderCache, ConvDecoderParams, PreparedMemory, ReadyParams
from convs2s_jax.models.convs2s.stack import through
from convs2s_jax.models.execution import DEFAULT, ExecutionConfig
from convs2s_jax.models.memory import Memory
from convs2s_jax.models.protocols import DecoderConfig
from convs2s_jax.nn import affine, attention, embedding
from convs2s_jax.nn.affine import linear
from convs2s_jax.nn.attention import Attention, Source
from convs2s_jax.nn.convolution import Form
from convs2s_jax.nn.dropout import dropout, split
from convs2s_jax.nn.embedding import embed, places
from convs2s_jax.nn.gate import glu
from convs2s_jax.nn.types import Array, Key

TABLES = 2**27
"""Most bytes of the tables that stand for the first layer."""


@record
class ConvDecoderConfig(DecoderConfig):
    """Convolutional decoder.

    layers: from the target up; convolution: their kind (`convolutions`); attention_layers: which of them attend,
    counted from 1 as in table 5 of the paper, None for all, () in a language model, which reads no source; out_dim: O,
    the linear map before the softmax; tied_output: the softmax uses the embedding table (O = E); positions,
    max_positions: as in the encoder.
    """

    normalised: ClassVar[bool] = True

    kind: Literal["conv"] = "conv"
    layers: tuple[ConvLayer, ...] = (ConvLayer(256, 3),) * 3
    convolution: ConvolutionConfig = DenseConfig()
    attention_layers: tuple[int, ...] | None = None
    out_dim: int = 256
    tied_output: bool = False
    positions: bool = True
    max_positions: int = 1024

    def __post_init__(self) -> None:
        check_layers(self.layers, self.convolution)
        check(self.out_dim >= 1, f"out_dim is {self.out_dim}: use 1 or more")
        check(self.max_positions >= 4, f"max_positions is {self.max_positions}: two rows are reserved; use 4 or more")
        if self.attention_layers is not None:
            for number in self.attention_layers:
                check(
                    1 <= number <= len(self.layers),
                    f"attention_layers has {number}: layers are counted from 1 to {len(self.layers)}",
                )

    @property
    def max_length(self) -> int:
        """Longest target in tokens, its end symbol counted: two rows of the position table are reserved."""
        return self.max_positions - 2

    def check_dim(self, dim: int) -> None:
        """Refuse a tied output whose O is not E = dim."""
        check(
            not self.tied_output or self.out_dim == dim,
            f"decoder.out_dim is {self.out_dim} with tied_output: the embedding table has {dim} columns; make the two "
            "equal",
        )

    def attends(self, index: int) -> bool:
        """Whether the layer of this index, from 0, has an attention."""
        return self.attention_layers is None or index + 1 in self.attention_layers

    def features_dim(self, _dim: int, /) -> int:
        """O."""
        return self.out_dim

    @property
    def reads_memory(self) -> bool:
        """Whether a layer attends."""
        return any(self.attends(i) for i in range(len(self.layers)))

    @property
    def returns_attention(self) -> bool:
        """Whether a layer attends."""
        return self.reads_memory

    @property
    def gradient_scale(self) -> float:
        """1 / 2n for n layers that attend (section 3.4; the factor 2 is fairseq's), 1 where none does."""
        count = sum(self.attends(i) for i in range(len(self.layers)))
        return 1.0 / (2 * count) if count else 1.0


def init(key: Key, cfg: ConvDecoderConfig, *, vocabulary: int, dim: int, rate: float) -> ConvDecoderParams:
    """Fresh parameters (section 3.5): rows V of the target vocabulary, E = dim, dropout `rate`."""
    keys = jax.random.split(key, 2 * len(cfg.layers) + 4)
    keep = 1.0 - rate
    blocks = []
    for i, (layer, size) in enumerate(zip(cfg.layers, sizes(cfg.layers), strict=True)):
        conv, projection = init_layer(keys[4 + 2 * i], layer, size, keep, cfg.convolution.at(i))
        attends = attention.init(keys[5 + 2 * i], layer.channels, dim) if cfg.attends(i) else None
        blocks.append(Block(conv=conv, projection=projection, attention=attends))
    return ConvDecoderParams(
        embedding=embedding.init(keys[0], vocabulary, dim, cfg.max_positions if cfg.positions else None),
        map_in=affine.init(keys[1], dim, cfg.layers[0].channels, keep=keep),
        blocks=tuple(blocks),
        map_out=affine.init(keys[2], cfg.layers[-1].channels, cfg.out_dim),
        output=output.init(keys[3], cfg.out_dim, vocabulary, tied=cfg.tied_output, keep=keep),
    )


def prepare(params: ConvDecoderParams, cfg: ConvDecoderConfig, memory: Memory) -> PreparedMemory:
    """Map the source once for all steps and hypotheses (`nn.attention.prepare`), before decoding token by token."""
    del cfg
    sources = [
        None if block.attention is None else attention.prepare(block.attention, memory.keys, memory.values)
        for block in params.blocks
    ]
    return PreparedMemory(sources=tuple(sources), mask=memory.mask)


def ready(params: ConvDecoderParams, cfg: ConvDecoderConfig) -> ConvDecoderParams:
    """The same decoder for many short calls of `advance` without a key; results are the same up to rounding."""
    conv = CONVOLUTIONS[cfg.convolution.kind].dense(params.blocks[0].conv, cfg.convolution.at(0))
    if isinstance(params, ReadyParams) or conv is None or tables.size(params.embedding, conv) > TABLES:
        return params
    return ReadyParams(
        embedding=params.embedding,
        map_in=params.map_in,
        blocks=params.blocks,
        map_out=params.map_out,
        output=params.output,
        first=tables.init(params.embedding, params.map_in, conv),
        bias=conv.b,
    )


def start(
    params: ConvDecoderParams, cfg: ConvDecoderConfig, memory: Memory | PreparedMemory, rows: int
) -> ConvDecoderCache:
    """The cache before the first token: zero histories, so that the first steps see zeros on the left."""
    del memory
    dtype = params.map_in.w.dtype
    reach = CONVOLUTIONS[cfg.convolution.kind].reach
    histories: list[Array | Words] = [
        jnp.zeros((rows, reach(cfg.convolution.at(i), layer.width), size.inputs), dtype)
        for i, (layer, size) in enumerate(zip(cfg.layers, sizes(cfg.layers), strict=True))
    ]
    if isinstance(params, ReadyParams):
        histories[0] = tables.start(params.first, rows)
    return ConvDecoderCache(length=jnp.zeros(rows, jnp.int32), histories=tuple(histories))


def advance(
    params: ConvDecoderParams,
    cfg: ConvDecoderConfig,
    memory: Memory | PreparedMemory,
    cache: ConvDecoderCache,
    tokens: Array,
    *,
    rate: float,
    key: Key | None = None,
    execution: ExecutionConfig = DEFAULT,
) -> tuple[Array, Array, ConvDecoderCache]:
    """Read any number of target tokens: all of them in training, one in decoding.

    Args:
      params: merged kernels, or ready ones.
      cfg: layer list.
      memory: of B sentences, as the encoder left it or prepared.
      cache: of N = B * W rows, W hypotheses of a sentence side by side.
      tokens: [N, T], the target shifted right by one; PAD only on the right.
      rate: dropout, on the embeddings, the input of each convolution and the features.
      key: for dropout; None evaluates.
      execution: of the layers; a single token goes through them without a loop.

    Returns:
      Features [N, T, O] for `logits`; attention [N, T, S], the mean over the attending layers; the next cache.

    Raises:
      ValueError: a key with ready parameters.
    """
    if key is not None and isinstance(params, ReadyParams):
        raise ValueError("ready parameters are for decoding: a key is for those they were made of")
    keys = split(key, len(cfg.layers) + 2)
    g = dropout(embed(params.embedding, tokens, cache.length).astype(params.map_in.w.dtype), rate, keys[0])
    known = params if isinstance(params, ReadyParams) else None
    words = Words(tokens=tokens, places=places(tokens, cache.length))
    sources = _sources(memory) if isinstance(memory, PreparedMemory) else (None,) * len(cfg.layers)

    causal = CONVOLUTIONS[cfg.convolution.kind].causal

    def apply(layer: ConvLayer, form: Form, item: Any, outputs: Sequence[Array]) -> tuple[Array, Any]:
        block, own, history, source, k = item
        after: Array | Words
        r = residual(outputs, layer, block.projection)
        if isinstance(history, Words):
            assert known is not None
            x, after = tables.causal(known.first, known.bias, history, words)
        else:
            x, after = causal(block.conv, own, history, dropout(outputs[-1], rate, k), form)
        h, a = glu(x), None
        if block.attention is not None:
            h, a = _attend(block.attention, memory, source, h, g)
        return add_residual(h, r), (after, a)

    if tokens.shape[1] == 1:  # in a search the kernels of a run would be stacked at every step (decision 0008)
        execution = dataclasses.replace(execution, scan_layers=0)
    own = [cfg.convolution.at(i) for i in range(len(cfg.layers))]
    items = list(zip(params.blocks, own, cache.histories, sources, keys[2:], strict=True))
    x = linear(params.map_in, g) if known is None else tables.read(known.first, words).astype(g.dtype)
    x, made = through(apply, cfg.layers, items, x, execution)
    features = dropout(linear(params.map_out, x), rate, keys[1])
    length = cache.length + jnp.sum(tokens != PAD, axis=1, dtype=cache.length.dtype)
    attended = _mean_attention([a for _, a in made if a is not None], tokens, memory.mask)
    return features, attended, ConvDecoderCache(length=length, histories=tuple(history for history, _ in made))


def _mean_attention(weights: list[Array], tokens: Array, mask: Array) -> Array:
    """Of the layers that attend, [N, T, S]; zeros where none does."""
    if not weights:
        return jnp.zeros((*tokens.shape, mask.shape[1]), jnp.float32)
    return jnp.mean(jnp.stack(weights), axis=0)


def _sources(memory: PreparedMemory) -> tuple[Source | None, ...]:
    """The sources with one z between them, so that XLA sees that g . z is the same in all layers."""
    z = [source.z for source in memory.sources if source is not None]
    return tuple(source and dataclasses.replace(source, z=z[0]) for source in memory.sources)


def _attend(
    params: Attention, memory: Memory | PreparedMemory, source: Source | None, h: Array, g: Array
) -> tuple[Array, Array]:
    if isinstance(memory, PreparedMemory):
        assert source is not None
        return attention.attend_prepared(params, source, h, g, memory.mask)
    return attention.attend(params, h, g, memory.keys, memory.values, memory.mask)


def logits(params: ConvDecoderParams, features: Array) -> Array:
    """Equation 3 before the softmax: W_o h + b_o, [..., O] -> [..., V], float32 or better."""
    return output.logits(params.output, params.embedding, features)
