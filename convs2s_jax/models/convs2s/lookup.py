"""The convolutional decoder for token-by-token decoding. What does not depend on the hypotheses is computed once.

    once for a model     products of the first convolution with every word and position (`precompute`)
    once for a sentence  the source, mapped for the attention of each layer (`prepare`)
    at each step         the rest of the layers, as in `convs2s.decoder`

Results are the same as those of `convs2s.decoder` up to rounding.
"""

import dataclasses
from functools import partial
from typing import Any

import jax.numpy as jnp
from jax.typing import DTypeLike

from convs2s_jax.models.convs2s import decoder, first_layer
from convs2s_jax.models.convs2s.convolutions import CONVOLUTIONS
from convs2s_jax.models.convs2s.decoder import ConvDecoderConfig, ConvDecoderParams, after_convolution
from convs2s_jax.models.convs2s.first_layer import Tables, Words
from convs2s_jax.models.execution import DEFAULT, ExecutionConfig
from convs2s_jax.models.memory import Memory
from convs2s_jax.nn import attention, convolution, struct
from convs2s_jax.nn.affine import Affine, linear
from convs2s_jax.nn.attention import MultiStepAttention, ProjectedSource
from convs2s_jax.nn.embedding import embed, length_after, position_rows
from convs2s_jax.nn.types import Array, Key

MOST_BYTES = 2**27
"""Maximum size of the tables in bytes. Larger ones are not built, and the first layer is computed at each step."""


@struct.dataclass
class LookupParams:
    """Parameters and the values precomputed from them.

    Attributes:
      plain: the original parameters.
      tables: tables of the first layer; None if its convolution depends on its input (dynamic), has a dilation, or
        would have tables that are too large.
      maps_source: whether `prepare` maps the source for each layer; static.
    """

    plain: ConvDecoderParams
    tables: Tables | None
    maps_source: bool = struct.field(pytree_node=False, default=True)


@struct.dataclass
class LookupMemory:
    """A memory mapped for the attention of each layer.

    Attributes:
      z: [B, E, S] of `nn.attention.scaled_keys`; shape [B, 0, S] if no layer attends.
      sources: the mapped source of each layer; None for layers without attention.
      mask: [B, S], True at real source positions.
    """

    z: Array
    sources: tuple[ProjectedSource | None, ...]
    mask: Array


@struct.dataclass
class LookupCache:
    """The decoder state after the target tokens read so far.

    Attributes:
      length: [N], real tokens read.
      histories: the last inputs of the convolution of each layer, [N, (K - 1) r, C]. For a first layer with tables, the
        words that they come from.
    """

    length: Array
    histories: tuple[Array | Words, ...]


def precompute(params: ConvDecoderParams, cfg: ConvDecoderConfig) -> LookupParams:
    """Precompute the tables of the first layer."""
    conv = CONVOLUTIONS[cfg.convolution.kind].dense(params.blocks[0].conv, cfg.convolution.at(0))
    if conv is None or first_layer.size(params.embedding, conv) > MOST_BYTES:
        return LookupParams(plain=params, tables=None)
    return LookupParams(plain=params, tables=first_layer.init(params.embedding, params.map_in, conv))


def for_one_hypothesis(params: LookupParams) -> LookupParams:
    """Adapt the parameters to a search with one hypothesis per sentence, which does not map the source.

    A target is about as long as its source, so the maps cost the same on either side, and without mapping, all layers
    read the same keys and values.
    """
    return dataclasses.replace(params, maps_source=False)


def prepare(params: LookupParams, _cfg: ConvDecoderConfig, memory: Memory) -> LookupMemory | Memory:
    """Map the source for the attention of each layer, once for all steps and hypotheses, if `maps_source`."""
    if not params.maps_source:
        return memory
    maps = [block.attention for block in params.plain.blocks]
    first = next((m for m in maps if m is not None), None)
    if first is None:
        return LookupMemory(
            z=jnp.zeros((len(memory.mask), 0, memory.mask.shape[1])), sources=(None,) * len(maps), mask=memory.mask
        )
    z = attention.scaled_keys(first, memory.keys)
    sources = tuple(None if m is None else attention.project_source(m, z, memory.values) for m in maps)
    return LookupMemory(z=z, sources=sources, mask=memory.mask)


def init_cache(params: LookupParams, cfg: ConvDecoderConfig, memory: LookupMemory | Memory, rows: int) -> LookupCache:
    """Create the cache before the first token."""
    plain = decoder.init_cache(params.plain, cfg, memory, rows)
    histories: tuple[Array | Words, ...] = plain.histories
    if params.tables is not None:
        histories = (first_layer.init_cache(params.tables, rows), *histories[1:])
    return LookupCache(length=plain.length, histories=histories)


def advance(
    params: LookupParams,
    cfg: ConvDecoderConfig,
    memory: LookupMemory | Memory,
    cache: LookupCache,
    tokens: Array,
    *,
    key: Key | None = None,
    execution: ExecutionConfig = DEFAULT,
    **_: object,
) -> tuple[Array, tuple[Array, ...], LookupCache]:
    """Like `convs2s.decoder.advance`, but without dropout. Arguments and results are the same.

    Raises:
      ValueError: a key was passed, although there is no dropout.
    """
    if key is not None:
        raise ValueError("precomputed parameters are for decoding without dropout: pass the key with the original ones")
    plain, tables, form = params.plain, params.tables, execution.form(False)
    g = embed(plain.embedding, tokens, cache.length).astype(plain.map_in.w.dtype)
    words = Words(tokens=tokens, places=position_rows(tokens, cache.length))
    convolve = CONVOLUTIONS[cfg.convolution.kind].convolve

    def convolved(i: int, history: Any, x: Array) -> tuple[Array, Array | Words]:
        if i == 0 and tables is not None:
            return first_layer.causal(tables, history, words)
        return convolution.causal(convolve(plain.blocks[i].conv, cfg.convolution.at(i), x, form), history, x)

    def attend(i: int, maps: MultiStepAttention, h: Array) -> tuple[Array, Array]:
        if isinstance(memory, Memory):
            return attention.attend(maps, h, g, memory.keys, memory.values, memory.mask)
        source: Any = memory.sources[i]  # not None for a layer that attends
        return attention.attend_projected(maps, h, g, memory.z, source, memory.mask)

    outputs = [linear(plain.map_in, g) if tables is None else first_layer.read(tables, words).astype(g.dtype)]
    histories, weights = [], []
    for i, (layer, block) in enumerate(zip(cfg.layers, plain.blocks, strict=True)):
        y, history = convolved(i, cache.histories[i], outputs[-1])
        x, a = after_convolution(block, layer, y, outputs, partial(attend, i))
        outputs.append(x)
        histories.append(history)
        weights.append(a)
    attended = tuple(a for a in weights if a is not None)
    after = LookupCache(length=length_after(cache.length, tokens), histories=tuple(histories))
    return linear(plain.map_out, outputs[-1]), attended, after


def output_layer(params: LookupParams, dtype: DTypeLike) -> Affine:
    """Return the softmax layer, as `convs2s.decoder.output_layer` does."""
    return decoder.output_layer(params.plain, dtype)
