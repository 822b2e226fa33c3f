"""The recurrent decoder: GRU or LSTM layers that attend to the memory, or see its summary alone.

How attention is wired in stands in `recurrent_wirings`, how it scores positions in `nn.recurrent_attention`.
"""

import jax
import jax.numpy as jnp

from convs2s_jax.core.tokens import PAD
from convs2s_jax.models import output
from convs2s_jax.models.execution import DEFAULT, ExecutionConfig
from convs2s_jax.models.memory import Memory
from convs2s_jax.models.protocols import Decoder
from convs2s_jax.models.recurrent.records import RecurrentDecoderCache, RecurrentDecoderConfig, RecurrentDecoderParams
from convs2s_jax.models.recurrent.wirings import WIRINGS, Target
from convs2s_jax.nn import affine, embedding, recurrent
from convs2s_jax.nn import recurrent_attention as scores
from convs2s_jax.nn.affine import linear
from convs2s_jax.nn.dropout import dropout, split
from convs2s_jax.nn.embedding import embed
from convs2s_jax.nn.recurrent import CELLS
from convs2s_jax.nn.recurrent_attention import ATTENTIONS, Source
from convs2s_jax.nn.types import Array, Key, wide


def init(key: Key, cfg: RecurrentDecoderConfig, *, vocabulary: int, dim: int, rate: float) -> RecurrentDecoderParams:
    """Fresh parameters (`nn.recurrent.init`): rows V of the target vocabulary, E = dim, dropout `rate`."""
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


def prepare(params: RecurrentDecoderParams, cfg: RecurrentDecoderConfig, memory: Memory) -> Source:
    """Map the source once for all steps and hypotheses."""
    kind = ATTENTIONS[cfg.attention]
    return scores.prepare(kind, params.attention, memory.keys, memory.values, memory.mask, memory.summary)


def start(
    params: RecurrentDecoderParams, cfg: RecurrentDecoderConfig, memory: Memory | Source, rows: int
) -> RecurrentDecoderCache:
    """The cache before the first token: s_0 = tanh(W summary + b) for each part of each layer's state.

    (Bahdanau et al. 2015, appendix A.2.2, where the summary is the encoder's backward state at the first word; of an
    LSTM both h and c.)
    """
    parts, dtype = CELLS[cfg.cell].parts, params.map_out.w.dtype

    def state(params: affine.Affine) -> recurrent.State:
        h = jnp.tanh(linear(params, memory.summary)).astype(wide(dtype))
        return tuple(jnp.split(jnp.repeat(h, rows // len(h), axis=0), parts, axis=-1))

    return RecurrentDecoderCache(
        states=tuple(map(state, params.first)),
        fed=jnp.zeros((rows, cfg.out_dim), dtype) if WIRINGS[cfg.wiring].fed else None,
    )


def advance(
    params: RecurrentDecoderParams,
    cfg: RecurrentDecoderConfig,
    memory: Memory | Source,
    cache: RecurrentDecoderCache,
    tokens: Array,
    *,
    rate: float,
    key: Key | None = None,
    execution: ExecutionConfig = DEFAULT,
) -> tuple[Array, Array, RecurrentDecoderCache]:
    """Read any number of target tokens: all of them in training, one in decoding.

    Args:
      params: kernels.
      cfg: stack, attention and wiring.
      memory: of B sentences, as the encoder left it or prepared.
      cache: of N = B * W rows, W hypotheses of a sentence side by side.
      tokens: [N, T], the target shifted right by one; PAD only on the right, where nothing is remembered.
      rate: dropout, on the embeddings, between layers and on the features.
      key: for dropout; None evaluates.
      execution: `remat` of each step or layer.

    Returns:
      Features [N, T, O] for `logits`; attention [N, T, S], zero everywhere with attention "none"; the next cache.
    """
    source = memory if isinstance(memory, Source) else prepare(params, cfg, memory)
    keys = split(key, cfg.layers + 1)
    e = dropout(embed(params.embedding, tokens, jnp.zeros(len(tokens), tokens.dtype)), rate, keys[0])
    target = Target(e.astype(params.map_out.w.dtype), tokens != PAD, rate, keys[2:], execution.remat)
    features, attention, cache = WIRINGS[cfg.wiring].read(params, cfg, source, cache, target)
    return dropout(features, rate, keys[1]), attention, cache


def logits(params: RecurrentDecoderParams, features: Array) -> Array:
    """Unnormalised log-probabilities W_o h + b_o, [..., O] -> [..., V], float32 or better."""
    return output.logits(params.output, params.embedding, features)


def attends(cfg: RecurrentDecoderConfig) -> bool:
    """Whether the attention that `advance` returns says anything."""
    return cfg.attention != "none"


KIND = Decoder(
    config=RecurrentDecoderConfig,
    init=init,
    prepare=prepare,
    start=start,
    advance=advance,
    logits=logits,
    normalised=False,
    attends=attends,
)
