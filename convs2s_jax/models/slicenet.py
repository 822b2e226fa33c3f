"""SliceNet (Kaiser, Gomez and Chollet 2018, section 3): separable convolutions, in modules of four steps.

    step(x)      = LN(separable(relu(x)))
    module(x)    = dropout(x + step4(step3(h))),  h = x + step2(step1(x))
    attend(x, m) = LN(x + softmax(q m' / sqrt(E)) m),  q = step6(step5(x + timing))

The encoder consists of modules over words and a timing signal. The decoder has a mixer of the embedded target g and the
memory m, then modules:

    x_0 = merge([attend(g, m); g]),   x_{i+1} = y + attend(y, m),  y = module(x_i)

All layers have E channels. Steps are centred in the encoder and causal in the decoder. Differences from the paper and
from its published code are listed in docs/models.md.
"""

from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp

from convs2s_jax.core.config import ITEMS, check, record
from convs2s_jax.core.tokens import PAD
from convs2s_jax.models import kinds
from convs2s_jax.models.kinds import Cache, Memory, Options, memory_of
from convs2s_jax.nn import convolution, depthwise, embedding, layer_norm, output, struct
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.attention import context
from convs2s_jax.nn.depthwise import TAPS, Factored, normal
from convs2s_jax.nn.dropout import dropout, split_key
from convs2s_jax.nn.embedding import Embedding, embed, length_after, position_embeddings
from convs2s_jax.nn.layer_norm import LayerNorm, normalise
from convs2s_jax.nn.masking import zero_padding
from convs2s_jax.nn.sinusoidal import sinusoidal
from convs2s_jax.nn.types import Array, Key, accumulation_dtype

Shapes = tuple[tuple[int, int], ...]
"""Width K and dilation r of each step."""
ATTENTION: Shapes = ((5, 1), (5, 4))
"""The two steps that compute the queries of an attention."""
MERGE: Shapes = ((3, 1),)
"""The step that merges target and attention before the first module of the decoder."""
SEPARABLE = TAPS["separable"]


def reaches_of(shapes: Shapes) -> list[int]:
    """Return (K - 1) r of each step, the positions that its output sees besides its own."""
    return [(width - 1) * dilation for width, dilation in shapes]


@record
class SliceNetConfig(kinds.HasPositions):
    """Config fields that encoder and decoder share.

    Attributes:
      kind: SliceNet.
      modules: number of modules.
      kernels: widths of the four steps of each module.
      dilations: dilations of the same steps.
      max_positions: two more than the longest sentence including its end symbol.
    """

    kind: Literal["slicenet"] = "slicenet"
    modules: int = 4
    kernels: tuple[int, int, int, int] = (3, 7, 15, 31)
    dilations: tuple[int, int, int, int] = (1, 1, 1, 1)
    max_positions: int = 1024

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.modules >= 1, f"modules is {self.modules}: use 1 or more")
        check(self.modules <= ITEMS, f"modules is {self.modules}: use at most {ITEMS}")
        for name in ("kernels", "dilations"):
            for number in getattr(self, name):
                check(number >= 1, f"{name} contains {number}: use 1 or more")

    @property
    def shapes(self) -> Shapes:
        """Width and dilation of each step of a module."""
        return tuple(zip(self.kernels, self.dilations, strict=True))

    def check_dim(self, dim: int) -> None:
        """Reject an E that the timing signal does not support."""
        check(
            dim >= 4 and dim % 2 == 0,
            f"embedding_dim is {dim}: the timing signal is half sines, half cosines; use an even number of at least 4",
        )


@struct.dataclass
class SliceNetStep:
    """Parameters of one step: the separable convolution, and the normalisation after it."""

    conv: Factored
    norm: LayerNorm


@struct.dataclass
class SliceNetAttention:
    """Parameters of one attention: the two steps that compute the queries, and the normalisation of the result."""

    steps: tuple[SliceNetStep, ...]
    norm: LayerNorm


def init_steps(key: Key, shapes: Shapes, dim: int, inputs: int | None = None) -> tuple[SliceNetStep, ...]:
    """Initialise steps of E = `dim` channels; the first reads `inputs`. `keep` = 2 compensates for the ReLU."""
    made = []
    for k, (width, _) in zip(jax.random.split(key, len(shapes)), shapes, strict=True):
        C = inputs or dim
        conv = depthwise.init_factored(k, SEPARABLE, normal(width**-0.5), width, C, dim, heads=C, keep=2.0)
        made.append(SliceNetStep(conv=conv, norm=layer_norm.init(dim)))
        inputs = None
    return tuple(made)


def init_attention(key: Key, dim: int) -> SliceNetAttention:
    """Initialise an attention of E = `dim` channels."""
    return SliceNetAttention(steps=init_steps(key, ATTENTION, dim), norm=layer_norm.init(dim))


def centred_steps(steps: Sequence[SliceNetStep], shapes: Shapes, x: Array, mask: Array) -> Array:
    """Apply steps of an encoder. Padding is zeroed before each convolution, as beyond the sentence boundary."""
    for step, (_, dilation), reach in zip(steps, shapes, reaches_of(shapes), strict=True):
        x = zero_padding(jax.nn.relu(x), mask)
        convolve = depthwise.factored_convolution(step.conv, SEPARABLE, x, dilation)
        x = normalise(step.norm, convolution.centred(convolve, x, reach))
    return x


def causal_steps(
    steps: Sequence[SliceNetStep], shapes: Shapes, past_inputs: Sequence[Array], x: Array
) -> tuple[Array, tuple[Array, ...]]:
    """Apply steps of a decoder, and return their histories after x."""
    afters = []
    for step, (_, dilation), before in zip(steps, shapes, past_inputs, strict=True):
        x = jax.nn.relu(x)
        y, after = convolution.causal(depthwise.factored_convolution(step.conv, SEPARABLE, x, dilation), before, x)
        x = normalise(step.norm, y)
        afters.append(after)
    return x, tuple(afters)


def attend(
    params: SliceNetAttention, past_inputs: Sequence[Array], x: Array, timing: Array, memory: Memory
) -> tuple[Array, Array, tuple[Array, ...]]:
    """Attend to the memory of B sentences from each position of x [N, T, E], N = B * W, with its timing [N, T, E].

    `past_inputs` are the histories of the steps. Return LN(x + context) [N, T, E], the weights [N, T, S] in float32 or
    better, and the histories after x.
    """
    q, afters = causal_steps(params.steps, ATTENTION, past_inputs, x + timing)
    q = (q * q.shape[-1] ** -0.5).reshape(len(memory.mask), -1, q.shape[-1])
    keys, values = memory.keys.astype(q.dtype), memory.values.astype(q.dtype)
    scores_BQS = jnp.einsum("BQE,BSE->BQS", q, keys, preferred_element_type=accumulation_dtype(q.dtype))
    c, a = context(scores_BQS, values, memory.mask)
    return normalise(params.norm, x + c.reshape(x.shape)), a.reshape(*x.shape[:2], -1), afters


def words_and_timing(
    params: Embedding, cfg: SliceNetConfig, tokens: Array, start: Array | None, dtype: Any
) -> tuple[Array, Array]:
    """Return sqrt(E) w and the timing signal of tokens [B, T], both [B, T, E]. The signal is zero at PAD."""
    dim = params.table.shape[1]
    positions = position_embeddings(jnp.asarray(sinusoidal(cfg.max_positions, dim), dtype), tokens, start)
    words = embed(params, tokens, start).astype(dtype) * dim**0.5
    return words, zero_padding(positions, tokens != PAD)


@record
class SliceNetEncoderConfig(SliceNetConfig, kinds.EncoderConfig):
    """SliceNet's encoder.

    Attributes:
      modules: number of modules. The published code has six, 1.5 times as many as in the decoder.
    """

    modules: int = 6

    @property
    def reaches(self) -> list[int]:
        """Source tokens that each module sees besides its own."""
        return [sum(reaches_of(self.shapes))] * self.modules


@struct.dataclass
class SliceNetEncoderParams:
    """Parameters of the encoder: the embedding of source tokens, and the four steps of each module."""

    embedding: Embedding
    modules: tuple[tuple[SliceNetStep, ...], ...]


def init_encoder(
    key: Key, cfg: SliceNetEncoderConfig, vocabulary: int, dim: int, _rate: float
) -> SliceNetEncoderParams:
    """Initialise parameters: embeddings of V = vocabulary source tokens ~ N(0, sqrt(1 / E)), E = dim."""
    table_key, *keys = jax.random.split(key, cfg.modules + 1)
    return SliceNetEncoderParams(
        embedding=embedding.init(table_key, vocabulary, dim, None, std=dim**-0.5),
        modules=tuple(init_steps(k, cfg.shapes, dim) for k in keys),
    )


def encode(params: SliceNetEncoderParams, cfg: SliceNetEncoderConfig, src: Array, options: Options) -> Memory:
    """Encode source tokens into a memory whose keys and values are both the output of the last module.

    Dropout is applied to the embeddings and to the output of each module.
    """
    mask, rate = src != PAD, options.rate
    keys = split_key(options.key, cfg.modules + 1)
    words, timing = words_and_timing(params.embedding, cfg, src, None, params.modules[0][0].conv.pointwise.w.dtype)
    x = dropout(words + timing, rate, keys[0])

    def module(steps: tuple[SliceNetStep, ...], x: Array, key: Key | None) -> Array:
        y = centred_steps(steps[:2], cfg.shapes[:2], x, mask)
        z = centred_steps(steps[2:], cfg.shapes[2:], x + y, mask)
        return dropout(x + z, rate, key)

    apply = options.execution.with_remat(module)
    for steps, k in zip(params.modules, keys[1:], strict=True):
        x = apply(steps, x, k)
    return memory_of(x, mask, options)


SliceNetEncoderConfig.functions = kinds.EncoderFunctions(init_encoder, encode)


@record
class SliceNetDecoderConfig(SliceNetConfig, kinds.DecoderConfig):
    """SliceNet's decoder.

    Attributes:
      tied_output: whether the softmax uses the embedding table, as in the published code.
    """

    tied_output: bool = True

    @property
    def attention_names(self) -> tuple[str, ...]:
        """Names of the attention of the mixer, then of those after the modules, counted from 1."""
        return ("mixer", *(f"module {i + 1}" for i in range(self.modules)))

    @property
    def reaches(self) -> list[int]:
        """Target tokens that the mixer and each module see before their own; queries of the attention see them too."""
        return [sum(reaches_of(ATTENTION + shapes)) for shapes in (MERGE, *[self.shapes] * self.modules)]


@struct.dataclass
class SliceNetBlock:
    """Parameters of one module, its four steps, and of the attention after it."""

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


def init_decoder(key: Key, cfg: SliceNetDecoderConfig, vocabulary: int, dim: int, rate: float) -> SliceNetDecoderParams:
    """Initialise parameters: embeddings of V = vocabulary target tokens ~ N(0, sqrt(1 / E)), E = dim."""
    keys = jax.random.split(key, 2 * cfg.modules + 4)
    return SliceNetDecoderParams(
        embedding=embedding.init(keys[0], vocabulary, dim, None, std=dim**-0.5),
        attention=init_attention(keys[1], dim),
        merge=init_steps(keys[2], MERGE, dim, inputs=2 * dim),
        blocks=tuple(
            SliceNetBlock(steps=init_steps(k, cfg.shapes, dim), attention=init_attention(a, dim))
            for k, a in zip(keys[4::2], keys[5::2], strict=True)
        ),
        output=output.init(keys[3], dim, vocabulary, tied=cfg.tied_output, keep=1.0 - rate),
    )


def init_cache(params: SliceNetDecoderParams, cfg: SliceNetDecoderConfig, _memory: Memory, rows: int) -> Cache:
    """Create the cache before the first token, with zero histories.

    There is a pair for the mixer, then one for each module: the histories of the steps, and of those of the attention.
    """
    dim, dtype = params.embedding.table.shape[1], params.merge[0].conv.pointwise.w.dtype

    def zeros(shapes: Shapes, channels: int = dim) -> tuple[Array, ...]:
        return tuple(jnp.zeros((rows, reach, channels), dtype) for reach in reaches_of(shapes))

    modules = ((zeros(cfg.shapes), zeros(ATTENTION)),) * cfg.modules
    histories = ((zeros(MERGE, 2 * dim), zeros(ATTENTION)), *modules)
    return Cache(length=jnp.zeros(rows, jnp.int32), histories=histories)


def advance(
    params: SliceNetDecoderParams,
    cfg: SliceNetDecoderConfig,
    memory: Memory,
    cache: Cache,
    tokens: Array,
    options: Options,
) -> tuple[Array, tuple[Array, ...], Cache]:
    """Read target tokens and return features, the attention of the mixer and of each module, and the next cache.

    Dropout is applied to the embeddings and to the output of each module.
    """
    keys, rate = split_key(options.key, cfg.modules + 1), options.rate
    dtype = params.merge[0].conv.pointwise.w.dtype
    g, timing = words_and_timing(params.embedding, cfg, tokens, cache.length, dtype)
    g = dropout(g, rate, keys[0])

    def block(params: SliceNetBlock, cached: Any, x: Array, key: Key | None) -> tuple[Array, Array, Any]:
        before, queries = cached
        y, early = causal_steps(params.steps[:2], cfg.shapes[:2], before[:2], x)
        z, late = causal_steps(params.steps[2:], cfg.shapes[2:], before[2:], x + y)
        y = dropout(x + z, rate, key)
        fetched, a, queries = attend(params.attention, queries, y, timing, memory)
        return y + fetched, a, ((*early, *late), queries)

    (merged, queries), *blocks = cache.histories
    fetched, a, queries = attend(params.attention, queries, g, timing, memory)
    x, merged = causal_steps(params.merge, MERGE, merged, jnp.concatenate([fetched, g], axis=-1))
    weights, after = [a], [(merged, queries)]
    apply = options.execution.with_remat(block)
    for p, before, k in zip(params.blocks, blocks, keys[1:], strict=True):
        x, a, now = apply(p, before, x, k)
        weights.append(a)
        after.append(now)
    return x, tuple(weights), Cache(length=length_after(cache.length, tokens), histories=tuple(after))


SliceNetDecoderConfig.functions = kinds.DecoderFunctions(init_decoder, init_cache, advance)
