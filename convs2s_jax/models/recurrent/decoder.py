"""The recurrent decoder: GRU or LSTM layers that attend to the memory, or read only its summary.

`wirings` connects the attention to the layers, and `nn.recurrent_attention` computes the scores of positions.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from convs2s_jax.core.config import check, record
from convs2s_jax.core.tokens import PAD
from convs2s_jax.models import output
from convs2s_jax.models.execution import DEFAULT, ExecutionConfig
from convs2s_jax.models.memory import Memory
from convs2s_jax.models.protocols import DecoderConfig, check_tied
from convs2s_jax.models.recurrent.encoder import check_stack
from convs2s_jax.models.recurrent.wirings import WIRINGS, RecurrentDecoderCache, RecurrentLayers, TargetWords
from convs2s_jax.nn import affine, embedding, recurrent, struct
from convs2s_jax.nn.affine import Affine, linear
from convs2s_jax.nn.dropout import dropout, split_key
from convs2s_jax.nn.embedding import Embedding, embed
from convs2s_jax.nn.recurrent import CELLS, Cell, CellName, CellState
from convs2s_jax.nn.recurrent_attention import ATTENTIONS, AttentionName, AttentionParams, MappedMemory
from convs2s_jax.nn.types import Array, Key, accumulation_dtype


@record
class RecurrentDecoderConfig(DecoderConfig):
    """Recurrent decoder.

    Attributes:
      kind: the recurrent decoder.
      cell: GRU or LSTM.
      layers: number of layers.
      units: number of units U of each layer.
      residual: the first layer, counted from 1, with a residual connection; all layers above it have one too (Wu et al.
        2016, equation 6). None for no residual connections.
      attention: how positions are scored: "additive" (Bahdanau et al. 2015), "dot" or "general" (Luong et al. 2015),
        or "none" to read only the encoder's summary.
      wiring: which state attends and where its context goes: the first layer's "previous" state (Bahdanau et al.
        2015), the top layer's "current" state (Luong et al. 2015), or that with input "feeding" (their section 3.3).
      out_dim: number of channels O of the layer before the softmax.
      tied_output: whether the softmax uses the embedding table (O = E).
      max_length: maximum length of a target in tokens, including its end symbol.
    """

    kind: Literal["recurrent"] = "recurrent"
    cell: CellName = "gru"
    layers: int = 1
    units: int = 256
    residual: int | None = None
    attention: AttentionName = "additive"
    wiring: Literal["previous", "current", "feeding"] = "previous"
    out_dim: int = 256
    tied_output: bool = False
    max_length: int = 1022

    def __post_init__(self) -> None:
        check_stack(self.layers, self.units, self.residual, self.max_length)
        check(self.out_dim >= 1, f"out_dim is {self.out_dim}: use 1 or more")

    def check_dim(self, dim: int) -> None:
        """Reject sizes that must equal E = dim but do not."""
        if self.tied_output:
            check_tied(self.out_dim, dim)
        check(
            self.attention != "dot" or self.units == dim,
            f"decoder.units is {self.units} with attention 'dot': a memory of embedding_dim {dim} is compared with "
            "states as they are; make the two equal, or use attention 'general'",
        )

    def features_dim(self, _dim: int, /) -> int:
        """Return the number of output features, O = `out_dim`."""
        return self.out_dim

    @property
    def attention_names(self) -> tuple[str, ...]:
        """One attention for all layers, or none."""
        return () if self.attention == "none" else ("attention",)


@struct.dataclass
class RecurrentDecoderParams:
    """Parameters of the recurrent decoder.

    Attributes:
      embedding: embedding of target tokens.
      first: maps from the summary to the initial state of each layer, [E -> U] for each part, concatenated.
      cells: kernels of each layer.
      attention: parameters of the attention.
      map_out: the linear map to the O features.
      output: the softmax layer [O -> V], or only its bias [V] if the kernel is the embedding table.
    """

    embedding: Embedding
    first: tuple[Affine, ...]
    cells: tuple[Cell, ...]
    attention: AttentionParams
    map_out: Affine
    output: Affine | Array


def init(key: Key, cfg: RecurrentDecoderConfig, *, vocabulary: int, dim: int, rate: float) -> RecurrentDecoderParams:
    """Initialise parameters (`nn.recurrent.init`) for V = vocabulary, E = dim and dropout `rate`."""
    kind, wiring, keep = CELLS[cfg.cell], WIRINGS[cfg.wiring], 1.0 - rate
    keys = jax.random.split(key, 2 * cfg.layers + 4)

    def beside(channels: tuple[int, int]) -> int:
        return channels[0] * dim + channels[1] * cfg.out_dim

    inputs = [dim + beside(wiring.first), *[cfg.units + beside(wiring.above)] * (cfg.layers - 1)]
    return RecurrentDecoderParams(
        embedding=embedding.init(keys[0], vocabulary, dim, None),
        first=tuple(affine.init(k, dim, kind.parts * cfg.units) for k in keys[4 : 4 + cfg.layers]),
        cells=tuple(
            recurrent.init(k, kind, size, cfg.units, keep=keep)
            for k, size in zip(keys[4 + cfg.layers :], inputs, strict=True)
        ),
        attention=ATTENTIONS[cfg.attention].init(keys[1], cfg.units, dim),
        map_out=affine.init(keys[2], cfg.units + beside(wiring.out), cfg.out_dim),
        output=output.init(keys[3], cfg.out_dim, vocabulary, tied=cfg.tied_output, keep=keep),
    )


def prepare(params: RecurrentDecoderParams, cfg: RecurrentDecoderConfig, memory: Memory) -> MappedMemory:
    """Project the source once for all steps and hypotheses."""
    keys = ATTENTIONS[cfg.attention].keys(params.attention, memory.keys)
    return MappedMemory(keys=keys, values=memory.values, mask=memory.mask, summary=memory.summary)


def init_cache(
    params: RecurrentDecoderParams, cfg: RecurrentDecoderConfig, memory: MappedMemory, rows: int
) -> RecurrentDecoderCache:
    """Create the cache before the first token: s_0 = tanh(W summary + b) for each part of each layer's state.

    (See Bahdanau et al. 2015, appendix A.2.2, where the summary is the encoder's backward state at the first word. An
    LSTM state has two parts, h and c.)
    """
    parts, dtype = CELLS[cfg.cell].parts, params.map_out.w.dtype

    def state(first: Affine) -> CellState:
        h = jnp.tanh(linear(first, memory.summary)).astype(accumulation_dtype(dtype))
        return tuple(jnp.split(jnp.repeat(h, rows // len(h), axis=0), parts, axis=-1))

    return RecurrentDecoderCache(
        states=tuple(map(state, params.first)),
        fed=jnp.zeros((rows, cfg.out_dim if WIRINGS[cfg.wiring].fed else 0), dtype),
    )


def advance(
    params: RecurrentDecoderParams,
    cfg: RecurrentDecoderConfig,
    memory: MappedMemory,
    cache: RecurrentDecoderCache,
    tokens: Array,
    *,
    rate: float,
    key: Key | None = None,
    execution: ExecutionConfig = DEFAULT,
) -> tuple[Array, tuple[Array, ...], RecurrentDecoderCache]:
    """Read target tokens and return features, the attention, if there is one, and the next cache.

    Arguments and results are as in `protocols.DecoderSteps`. States do not change at PAD. Dropout is applied to the
    embeddings, between layers and to the features. Of `execution`, only `remat` has an effect, on each step or layer.
    """
    keys = split_key(key, cfg.layers + 1)
    e = dropout(embed(params.embedding, tokens), rate, keys[0])
    layers = RecurrentLayers(
        kind=CELLS[cfg.cell],
        scoring=ATTENTIONS[cfg.attention],
        residual=cfg.residual,
        cells=params.cells,
        attention=params.attention,
        map_out=params.map_out,
    )
    target = TargetWords(e.astype(params.map_out.w.dtype), tokens != PAD, rate, keys[2:], execution)
    features, attention, cache = WIRINGS[cfg.wiring].read(layers, memory, cache, target)
    return dropout(features, rate, keys[1]), (attention,) if cfg.returns_attention else (), cache


def output_layer(params: RecurrentDecoderParams, dtype: DTypeLike) -> Affine:
    """Return the softmax layer (section 3.2, last equation); see `models.output.layer`."""
    return output.layer(params.output, params.embedding, dtype)
