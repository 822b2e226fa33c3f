"""The functions of an encoder-decoder: initial parameters, encoding, and decoding token by token or all at once."""

import dataclasses
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.models.checks import check_config, check_pairs, check_params, check_rows, check_shapes, check_tokens
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.execution import matmul_precision_context
from convs2s_jax.models.kinds import Memory, Options
from convs2s_jax.nn import output, struct
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.keys import threefry
from convs2s_jax.nn.types import Array, Key, Tree, accumulation_dtype


@struct.dataclass
class Params:
    """Parameters of the encoder and the decoder, of the types of their kinds.

    With `share_embeddings` the encoder's `embedding.table` is None, and only the decoder has a table.
    """

    encoder: Any
    decoder: Any


@struct.dataclass
class PrecomputedParams(Params):
    """Parameters for token-by-token decoding, with values that are computed once for all steps (`precompute`)."""


def init(key: Key, cfg: ModelConfig, *, source_vocabulary: int, target_vocabulary: int) -> Params:
    """Initialise the parameters, with plain kernels (`split` turns them into what is trained).

    They are in float32, or in float64 under `jax_enable_x64`.

    Raises:
      ValueError: a shared table for vocabularies of different sizes, or several keys.
    """
    check_config(cfg, ModelConfig)
    if cfg.share_embeddings and source_vocabulary != target_vocabulary:
        raise ValueError(
            f"vocabularies of {source_vocabulary} and {target_vocabulary} entries cannot share one table: both sides "
            "need the same vocabulary"
        )
    key = threefry(key)
    if key.ndim:
        raise ValueError(f"key has shape {key.shape}: pass one key, or map `init` over several with jax.vmap")
    return _init(key, cfg, source_vocabulary, target_vocabulary)


@partial(jax.jit, static_argnums=(1, 2, 3))
def _init(key: Key, cfg: ModelConfig, source_vocabulary: int, target_vocabulary: int) -> Params:
    encoder_key, decoder_key = jax.random.split(key)
    dim, rate = cfg.embedding_dim, cfg.dropout
    params = Params(
        encoder=cfg.encoder.functions.init(encoder_key, cfg.encoder, source_vocabulary, dim, rate),
        decoder=cfg.decoder.functions.init(decoder_key, cfg.decoder, target_vocabulary, dim, rate),
    )
    return with_encoder_table(params, None) if cfg.share_embeddings else params


def with_encoder_table(params: Params, table: Array | None) -> Params:
    """Replace the embedding table [V, E] of the encoder; None if it shares the decoder's."""
    embedding = dataclasses.replace(params.encoder.embedding, table=table)
    return dataclasses.replace(params, encoder=dataclasses.replace(params.encoder, embedding=embedding))


def with_shared_table(params: Params, cfg: ModelConfig) -> Params:
    """Put the decoder's embedding table into the encoder too, in a model that shares it.

    The gradient with respect to the table is the sum over all three uses.

    Raises:
      ValueError: the encoder has a table although cfg shares one, or the reverse.
    """
    if isinstance(params, PrecomputedParams):  # `precompute` has done it
        return params
    if not cfg.share_embeddings and not jax.tree.leaves(params.encoder):  # of a language model, for example
        return params
    own = params.encoder.embedding.table
    if (own is None) != cfg.share_embeddings:
        raise ValueError(
            f"share_embeddings of cfg is {cfg.share_embeddings}, but params.encoder has "
            f"{'no' if own is None else 'its own'} embedding table: use the cfg passed to `init`"
        )
    return with_encoder_table(params, params.decoder.embedding.table) if cfg.share_embeddings else params


def check_decoder(params: Params, cfg: ModelConfig) -> None:
    """Reject parameters of another decoder than that of cfg."""
    check_params(params, Params)
    check_config(cfg, ModelConfig)
    init, precomputed = cfg.decoder.functions.init, isinstance(params, PrecomputedParams)
    check_shapes("params.decoder", params.decoder, init, cfg.decoder, cfg.embedding_dim, precomputed=precomputed)


def encode(params: Params, cfg: ModelConfig, src: Array, *, key: Key | None = None) -> Memory:
    """Encode source tokens [B, S], end symbol included, into a memory of B sentences."""
    check_params(params, Params)
    check_config(cfg, ModelConfig)
    check_tokens("src", src)
    params, functions = with_shared_table(params, cfg), cfg.encoder.functions
    check_shapes("params.encoder", params.encoder, functions.init, cfg.encoder, cfg.embedding_dim)
    options = Options(cfg.dropout, key, cfg.execution, cfg.decoder.gradient_scale)
    with matmul_precision_context(cfg.matmul_precision):
        return functions.encode(params.encoder, cfg.encoder, src, options)


def prepare(params: Params, cfg: ModelConfig, memory: Memory) -> Memory:
    """Prepare the memory for the decoder's layers; `init_cache`, `advance` and `decode` accept it in place of `memory`.

    They prepare a memory themselves, but once is enough for many short calls, as in search. A memory that is already
    prepared is returned unchanged.
    """
    if memory.prepared:
        return memory
    check_decoder(params, cfg)
    with matmul_precision_context(cfg.matmul_precision):
        return cfg.decoder.functions.prepare(params.decoder, cfg.decoder, memory)


def init_cache(params: Params, cfg: ModelConfig, memory: Memory, rows: int) -> Tree:
    """Create an empty cache of `rows` = N rows, a multiple of the sentences in `memory`.

    The hypotheses of a sentence are adjacent rows.
    """
    check_rows(rows, len(memory.mask))
    check_decoder(params, cfg)
    memory = prepare(params, cfg, memory)
    with matmul_precision_context(cfg.matmul_precision):
        return cfg.decoder.functions.init_cache(params.decoder, cfg.decoder, memory, rows)


def advance(
    params: Params, cfg: ModelConfig, memory: Memory, cache: Tree, tokens: Array, *, key: Key | None = None
) -> tuple[Array, Array, Tree]:
    """Read tokens [N, T]; return features [N, T, O] for `logits`, attention [N, T, S] and the cache.

    The attention is the mean over the layers that attend, or that of the last one if `averages_attention` of the
    decoder's config is False. It is zero if no layer attends.
    """
    features, layers, cache = advance_in_layers(params, cfg, memory, cache, tokens, key=key)
    if not layers:
        return features, jnp.zeros((*tokens.shape, memory.mask.shape[1]), accumulation_dtype(features.dtype)), cache
    averages = cfg.decoder.averages_attention and len(layers) > 1
    return features, jnp.mean(jnp.stack(layers), axis=0) if averages else layers[-1], cache


def advance_in_layers(
    params: Params, cfg: ModelConfig, memory: Memory, cache: Tree, tokens: Array, *, key: Key | None = None
) -> tuple[Array, tuple[Array, ...], Tree]:
    """Like `advance`, but return a separate attention [N, T, S] for each of `cfg.decoder.attention_names`."""
    check_tokens("tokens", tokens)
    check_rows(len(tokens), len(memory.mask))
    check_decoder(params, cfg)
    if key is not None and isinstance(params, PrecomputedParams):
        raise ValueError("precomputed parameters are for decoding without dropout: pass the key with the original ones")
    memory, options = prepare(params, cfg, memory), Options(cfg.dropout, key, cfg.execution)
    with matmul_precision_context(cfg.matmul_precision):
        return cfg.decoder.functions.advance(params.decoder, cfg.decoder, memory, cache, tokens, options)


def logits(params: Params, cfg: ModelConfig, features: Array, *, layer: Affine | None = None) -> Array:
    """Unnormalised log-probabilities [..., V] of features [..., O], in float32 or better.

    Pass `layer` to use a softmax layer other than the model's own, such as one with fewer words (`output.columns`).
    """
    check_params(params, Params)
    with matmul_precision_context(cfg.matmul_precision):
        return output.logits(layer or output_layer(params, cfg, features.dtype), features)


def output_layer(params: Params, cfg: ModelConfig, dtype: DTypeLike) -> Affine:
    """Return the softmax layer (section 3.2): kernel [O, V] in `dtype`, bias [V] in float32 or better."""
    check_decoder(params, cfg)
    return output.layer(params.decoder.output, params.decoder.embedding, dtype)


def decode(
    params: Params,
    cfg: ModelConfig,
    memory: Memory,
    cache: Tree,
    tokens: Array,
    *,
    key: Key | None = None,
    layer: Affine | None = None,
) -> tuple[Array, Array, Tree]:
    """Read target tokens and predict the token after each, in training, decoding and forced prefixes alike.

    The result does not depend on how the target is split into calls.

    Args:
      params: merged kernels.
      cfg: config of the model.
      memory: memory of B sentences.
      cache: cache of N = B * W rows.
      tokens: [N, T], the end symbol (which starts a target) followed by the target; PAD only on the right.
      key: key for dropout; None for evaluation.
      layer: as in `logits`.

    Returns:
      Logits [N, T, V], attention [N, T, S] and the cache after these tokens.
    """
    features, attention, cache = advance(params, cfg, memory, cache, tokens, key=key)
    return logits(params, cfg, features, layer=layer), attention, cache


def decoder_inputs(tgt: Array) -> Array:
    """Shift the target [B, T] right: the end symbol comes first, and PAD stays PAD."""
    check_tokens("tgt", tgt)
    shifted = jnp.concatenate([jnp.full_like(tgt[:, :1], EOS), tgt[:, :-1]], axis=1)
    return jnp.where(tgt == PAD, PAD, shifted)


def layer_attention(params: Params, cfg: ModelConfig, src: Array, tgt: Array) -> Array:
    """Attention weights a^l_ij of each target token over the source tokens (equation 1), in each layer that attends.

    Several heads are averaged.

    Args:
      params: merged kernels, or what `precompute` returns for them.
      cfg: a model whose decoder attends.
      src: [B, S] tokens with the end symbol, PAD on the right.
      tgt: [B, T] tokens with the end symbol, PAD on the right.

    Returns:
      [B, A, T, S] in float32 or better, for the A attentions l of `cfg.decoder.attention_names`. Row i is where the
      decoder looked when it predicted token i. Rows sum to one. Rows and columns are zero at PAD.

    Raises:
      TypeError, ValueError: the decoder does not attend, or src and tgt are not tokens or differ in rows.
    """
    check_config(cfg, ModelConfig)
    check_pairs(src, tgt)
    if not cfg.attends:
        raise ValueError(f"decoder.kind is '{cfg.decoder.kind}' without attention: there are no weights to return")
    memory = prepare(params, cfg, encode(params, cfg, src))
    cache = init_cache(params, cfg, memory, len(tgt))
    _, layers, _ = advance_in_layers(params, cfg, memory, cache, decoder_inputs(tgt))
    real = (tgt != PAD)[:, None, :, None] & memory.mask[:, None, None, :]
    return jnp.where(real, jnp.stack(layers, axis=1), 0.0)
