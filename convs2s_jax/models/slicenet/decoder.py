"""SliceNet's decoder (Kaiser, Gomez and Chollet 2018, section 3.3): a mixer of source and target, then modules.

    x_0 = merge([attend(g, m); g]),   x_{i+1} = y + attend(y, m),  y = module(x_i)

where g are the embedded target tokens and m is the memory.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from convs2s_jax.core.config import record
from convs2s_jax.models import output
from convs2s_jax.models.execution import DEFAULT, ExecutionConfig
from convs2s_jax.models.memory import Memory
from convs2s_jax.models.protocols import DecoderConfig, fields_after
from convs2s_jax.models.slicenet import layers
from convs2s_jax.models.slicenet.layers import ATTENTION, MERGE, SliceNetAttention, SliceNetConfig, SliceNetStep
from convs2s_jax.nn import embedding, struct
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.dropout import dropout, split_key
from convs2s_jax.nn.embedding import Embedding, embed, length_after
from convs2s_jax.nn.sharded_params import any_sharded, gather
from convs2s_jax.nn.types import Array, Key


@record
class SliceNetDecoderConfig(SliceNetConfig, DecoderConfig):
    """SliceNet's decoder.

    Attributes:
      tied_output: whether the softmax uses the embedding table, as in the published code.
    """

    kind: Literal["slicenet"] = "slicenet"
    tied_output: bool = True

    @property
    def attention_names(self) -> tuple[str, ...]:
        """Names of the attention of the mixer, then of those after the modules, counted from 1."""
        return ("mixer", *(f"module {i + 1}" for i in range(self.modules)))

    @property
    def receptive_fields(self) -> tuple[int, ...]:
        """After the mixer and after each module with its attention. The queries of the attention extend the field."""
        queries = layers.reach_of(ATTENTION)
        reaches = [queries + layers.reach_of(shapes) for shapes in (MERGE, *[self.shapes] * self.modules)]
        return fields_after(reaches)


@struct.dataclass
class SliceNetBlock:
    """Parameters of one module and of the attention after it.

    Attributes:
      steps: the four steps of the module.
      attention: the attention.
    """

    steps: tuple[SliceNetStep, ...]
    attention: SliceNetAttention


@struct.dataclass
class SliceNetDecoderParams:
    """Parameters of the decoder.

    Attributes:
      embedding: embedding of target tokens.
      attention: the attention of the mixer.
      merge: the merging step of the mixer.
      blocks: modules with their attention.
      output: the softmax layer; with a tied output only its bias [V].
    """

    embedding: Embedding
    attention: SliceNetAttention
    merge: tuple[SliceNetStep, ...]
    blocks: tuple[SliceNetBlock, ...]
    output: Affine | Array


@struct.dataclass
class SliceNetBlockCache:
    """Histories of one module, or of the mixer.

    Attributes:
      steps: one for each step of the module, or for the merging step of the mixer.
      attention: one for each step of its attention.
    """

    steps: tuple[Array, ...]
    attention: tuple[Array, ...]


@struct.dataclass
class SliceNetDecoderCache:
    """The decoder state after the target tokens read so far.

    Attributes:
      length: [N], real tokens read.
      mixer: histories of the mixer.
      blocks: histories of the modules and their attention.
    """

    length: Array
    mixer: SliceNetBlockCache
    blocks: tuple[SliceNetBlockCache, ...]


def init(key: Key, cfg: SliceNetDecoderConfig, *, vocabulary: int, dim: int, rate: float) -> SliceNetDecoderParams:
    """Initialise parameters: embeddings of V = vocabulary target tokens ~ N(0, sqrt(1 / E)), E = dim."""
    keys = jax.random.split(key, 2 * cfg.modules + 4)
    return SliceNetDecoderParams(
        embedding=embedding.init(keys[0], vocabulary, dim, None, std=dim**-0.5),
        attention=layers.init_attention(keys[1], dim),
        merge=layers.init_steps(keys[2], MERGE, dim, inputs=2 * dim),
        blocks=tuple(
            SliceNetBlock(steps=layers.init_steps(k, cfg.shapes, dim), attention=layers.init_attention(a, dim))
            for k, a in zip(keys[4::2], keys[5::2], strict=True)
        ),
        output=output.init(keys[3], dim, vocabulary, tied=cfg.tied_output, keep=1.0 - rate),
    )


def prepare(_params: SliceNetDecoderParams, _cfg: SliceNetDecoderConfig, memory: Memory) -> Memory:
    """Return the memory unchanged, since there is nothing to prepare."""
    return memory


def init_cache(
    params: SliceNetDecoderParams, cfg: SliceNetDecoderConfig, _memory: Memory, rows: int
) -> SliceNetDecoderCache:
    """Create the cache before the first token, with zero histories."""
    dim, dtype = _dim_and_dtype(params)

    def block(shapes: layers.Shapes, inputs: int | None = None) -> SliceNetBlockCache:
        return SliceNetBlockCache(
            steps=layers.histories(shapes, rows, dim, dtype, inputs),
            attention=layers.histories(ATTENTION, rows, dim, dtype),
        )

    return SliceNetDecoderCache(
        length=jnp.zeros(rows, jnp.int32), mixer=block(MERGE, 2 * dim), blocks=(block(cfg.shapes),) * cfg.modules
    )


def advance(
    params: SliceNetDecoderParams,
    cfg: SliceNetDecoderConfig,
    memory: Memory,
    cache: SliceNetDecoderCache,
    tokens: Array,
    *,
    rate: float,
    key: Key | None = None,
    execution: ExecutionConfig = DEFAULT,
) -> tuple[Array, tuple[Array, ...], SliceNetDecoderCache]:
    """Read target tokens and return features, the attention of the mixer and of each module, and the next cache.

    Arguments and results are as in `protocols.DecoderSteps`. Dropout is applied to the embeddings and to the output of
    each module. Of `execution`, only `remat` has an effect, on each module.
    """
    keys = split_key(key, cfg.modules + 1)
    dim, dtype = _dim_and_dtype(params)
    g = dropout(embed(params.embedding, tokens, cache.length).astype(dtype) * dim**0.5, rate, keys[0])
    timing = layers.timing_of(cfg, tokens, cache.length, dim, dtype)
    source = (memory.keys.astype(dtype), memory.values.astype(dtype), memory.mask)

    def block(
        params: SliceNetBlock, before: SliceNetBlockCache, x: Array, key: Key | None
    ) -> tuple[Array, Array, SliceNetBlockCache]:
        params = gather(params)
        y, early = layers.causal_steps(params.steps[:2], cfg.shapes[:2], before.steps[:2], x)
        z, late = layers.causal_steps(params.steps[2:], cfg.shapes[2:], before.steps[2:], x + y)
        y = dropout(x + z, rate, key)
        fetched, a, queries = layers.attend(params.attention, before.attention, y, timing, *source)
        return y + fetched, a, SliceNetBlockCache(steps=(*early, *late), attention=queries)

    fetched, a, queries = layers.attend(params.attention, cache.mixer.attention, g, timing, *source)
    x, merged = layers.causal_steps(params.merge, MERGE, cache.mixer.steps, jnp.concatenate([fetched, g], axis=-1))
    weights, after = [a], []
    apply = execution.with_remat(block, sharded=any_sharded(params.blocks))
    for p, before, k in zip(params.blocks, cache.blocks, keys[1:], strict=True):
        x, a, now = apply(p, before, x, k)
        weights.append(a)
        after.append(now)
    length, mixer = length_after(cache.length, tokens), SliceNetBlockCache(steps=merged, attention=queries)
    return x, tuple(weights), SliceNetDecoderCache(length=length, mixer=mixer, blocks=tuple(after))


def output_layer(params: SliceNetDecoderParams, dtype: DTypeLike) -> Affine:
    """Return the softmax layer (section 3.2, last equation); see `models.output.layer`."""
    return output.layer(params.output, params.embedding, dtype)


def _dim_and_dtype(params: SliceNetDecoderParams) -> tuple[int, Any]:
    """Return E and the dtype of products."""
    return params.embedding.table.shape[1], params.merge[0].conv.pointwise.w.dtype
