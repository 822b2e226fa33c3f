"""Encoder-decoder model functions: parameters, encoding, and decoding token by token or all at once."""

import dataclasses
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.models import output
from convs2s_jax.models.checks import (
    check_cache,
    check_config,
    check_features,
    check_memory,
    check_params,
    check_record,
    check_shapes,
    check_tokens,
    check_vocabulary,
)
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.execution import matmul_precision_context
from convs2s_jax.models.memory import Memory
from convs2s_jax.models.protocols import DecoderSteps
from convs2s_jax.models.table import DECODERS, ENCODERS, FAST_DECODERS
from convs2s_jax.nn import draws, struct, weight_norm
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.dropout import typed
from convs2s_jax.nn.embedding import Embedding
from convs2s_jax.nn.layer_norm import LayerNorm
from convs2s_jax.nn.quantized import Quantized
from convs2s_jax.nn.sharded_params import ShardedParam, any_sharded, gather, gathered_by_layer, is_sharded
from convs2s_jax.nn.trees import path_of
from convs2s_jax.nn.types import Array, Key, Tree, accumulation_dtype

T = TypeVar("T")
_HALVES = (jnp.bfloat16, jnp.float16)


@struct.dataclass
class Params:
    """Parameters of the encoder and the decoder.

    Attributes:
      encoder: parameters of the encoder, of the type of its kind. With `share_embeddings` its `embedding.table` is
        None, and only the decoder has a table.
      decoder: parameters of the decoder, of the type of its kind.
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
      ValueError: a shared table for vocabularies of different sizes, an invalid vocabulary size, or several keys.
    """
    check_config(cfg, ModelConfig)
    if cfg.share_embeddings and source_vocabulary != target_vocabulary:
        raise ValueError(
            f"vocabularies of {source_vocabulary} and {target_vocabulary} entries cannot share one table: both sides "
            "need the same vocabulary"
        )
    if cfg.encoder.reads_source:
        check_vocabulary("source_vocabulary", source_vocabulary)
    check_vocabulary("target_vocabulary", target_vocabulary)
    key = typed(key)
    if key.ndim:
        raise ValueError(f"key has shape {key.shape}: pass one key, or map `init` over several with jax.vmap")
    return draws.initialise(_init, key, cfg, source_vocabulary, target_vocabulary)


def _init(key: Key, cfg: ModelConfig, source_vocabulary: int, target_vocabulary: int) -> Params:
    encoder_key, decoder_key = jax.random.split(key)
    dim, rate = cfg.embedding_dim, cfg.dropout
    encoder, decoder = ENCODERS[cfg.encoder.kind], DECODERS[cfg.decoder.kind]
    params = Params(
        encoder=encoder.init(encoder_key, cfg.encoder, vocabulary=source_vocabulary, dim=dim, rate=rate),
        decoder=decoder.init(decoder_key, cfg.decoder, vocabulary=target_vocabulary, dim=dim, rate=rate),
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


def split(params: Params, cfg: ModelConfig) -> Params:
    """Split kernels into direction and length for training (`nn.weight_norm`), in kinds that use it."""
    check_params(params, Params)
    check_config(cfg, ModelConfig)
    if isinstance(params, PrecomputedParams):
        raise ValueError("params are precomputed for decoding: split those that `precompute` was called with")
    encoder, decoder = params.encoder, params.decoder
    return Params(
        encoder=weight_norm.split(encoder) if cfg.encoder.normalised else encoder,
        decoder=weight_norm.split(decoder) if cfg.decoder.normalised else decoder,
    )


def cast(params: T, cfg: Any) -> T:
    """Cast parameters to the dtype of the computation, and gather sharded ones (`nn.sharded_params`) unless layers do.

    If `cfg.dtype` is float32, float64 stays as it is.

    Args:
      params: parameters of any model.
      cfg: its config; only `dtype` is read.
    """
    if cfg.dtype == "float32":
        params = jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype in _HALVES else x, params, is_leaf=is_sharded)
    else:
        params = in_dtype(params, cfg.dtype)
    return gather_before_layers(params, cfg) if any_sharded(params) else params


def in_dtype(params: T, dtype: DTypeLike) -> T:
    """Cast parameters to a dtype, including sharded ones, without gathering them.

    Embeddings stay in float32, since their gradients add up row by row. So do the parameters of layer normalisation.
    """

    def convert(x: Any) -> Any:
        return x if isinstance(x, Embedding | LayerNorm) else x.astype(dtype)

    converted: T = jax.tree.map(
        convert, params, is_leaf=lambda x: isinstance(x, Embedding | LayerNorm | ShardedParam | Quantized)
    )
    return converted


def gather_before_layers(params: T, cfg: Any) -> T:
    """Gather sharded parameters, except those in `blocks` that are not `early`: layers gather them.

    Embedding tables are sent in the dtype of the computation.
    """

    def table(x: Any) -> Any:
        if not is_sharded(x):
            return x
        return gather(x if cfg.dtype == "float32" else x.astype(cfg.dtype)).astype(x.dtype)

    def convert(path: tuple[Any, ...], x: Any) -> Any:
        name = path_of(path)
        if isinstance(x, Embedding):
            return Embedding(table=table(x.table), positions=table(x.positions))
        left_to_layer = is_sharded(x) and not x.early and gathered_by_layer(name)
        return x if left_to_layer else gather(x)

    gathered: T = jax.tree_util.tree_map_with_path(
        convert, params, is_leaf=lambda x: isinstance(x, Embedding | ShardedParam)
    )
    return gathered


def precompute(params: Params, cfg: ModelConfig) -> Params:
    """Precompute what the decoder computes from each word alone, so that each decoding step has less to do.

    `encode`, `prepare`, `init_cache`, `advance`, `decode`, `loss`, `translate`, `score`, `force` and `layer_attention`
    accept the result in place of the parameters, without a key. Functions that change, train or combine parameters do
    not, so call `average`, `split` and `update` first. The tables can make the result larger than the parameters.
    Results of the model are the same up to rounding. For decoders without such tables, the parameters are returned in
    `cfg.dtype`.
    """
    if isinstance(params, PrecomputedParams):
        return params
    check_params(params, Params)
    check_config(cfg, ModelConfig)
    _decoder(params, cfg)  # for its checks
    params = cast(params, cfg)
    fast = FAST_DECODERS.get(cfg.decoder.kind)
    if fast is None:
        return params
    params = with_shared_table(params, cfg)
    with matmul_precision_context(cfg.matmul_precision):
        return PrecomputedParams(encoder=params.encoder, decoder=fast.precompute(params.decoder, cfg.decoder))


def for_one_hypothesis(params: Params, cfg: ModelConfig) -> Params:
    """Adapt precomputed parameters to a search with one hypothesis per sentence; others are returned unchanged.

    Their decoder prepares less of the memory. Results are the same up to rounding.
    """
    if not isinstance(params, PrecomputedParams):
        return params
    fast = FAST_DECODERS[cfg.decoder.kind]
    return PrecomputedParams(encoder=params.encoder, decoder=fast.for_one_hypothesis(params.decoder))


def _decoder(params: Params, cfg: ModelConfig) -> DecoderSteps[Any, Any, Any, Any]:
    """Return the decoder functions for these parameters, plain or precomputed."""
    check_config(cfg, ModelConfig)
    kind = cfg.decoder.kind
    if isinstance(params, PrecomputedParams) and kind in FAST_DECODERS:
        check_record("params.decoder", params.decoder, FAST_DECODERS[kind].precompute, kind)
        return FAST_DECODERS[kind]
    check_record("params.decoder", params.decoder, DECODERS[kind].init, kind)
    check_shapes("params.decoder", params.decoder, DECODERS[kind].init, cfg.decoder, cfg.embedding_dim)
    return DECODERS[kind]


def encode(params: Params, cfg: ModelConfig, src: Array, *, key: Key | None = None) -> Memory:
    """Encode source tokens [B, S], end symbol included, into a memory of B sentences."""
    check_params(params, Params)
    check_config(cfg, ModelConfig)
    check_tokens("src", src)
    kind, scale = cfg.encoder.kind, cfg.decoder.gradient_scale
    check_record("params.encoder", params.encoder, ENCODERS[kind].init, kind)
    params = with_shared_table(params, cfg)
    check_shapes("params.encoder", params.encoder, ENCODERS[kind].init, cfg.encoder, cfg.embedding_dim)
    with matmul_precision_context(cfg.matmul_precision):
        return ENCODERS[kind].encode(
            params.encoder, cfg.encoder, src, rate=cfg.dropout, gradient_scale=scale, key=key, execution=cfg.execution
        )


def prepare(params: Params, cfg: ModelConfig, memory: Memory) -> Any:
    """Prepare the memory for the decoder's layers; `init_cache`, `advance` and `decode` accept it in place of `memory`.

    They prepare a memory themselves, but doing it once pays off if many short calls follow, as in search. A memory
    that is already prepared is returned unchanged.
    """
    if not isinstance(memory, Memory):
        return memory
    with matmul_precision_context(cfg.matmul_precision):
        return _decoder(params, cfg).prepare(params.decoder, cfg.decoder, memory)


def init_cache(params: Params, cfg: ModelConfig, memory: Memory, rows: int) -> Tree:
    """Create an empty cache of `rows` = N rows, a multiple of the sentences in `memory`.

    The hypotheses of a sentence are adjacent rows.
    """
    check_params(params, Params)
    check_memory(memory, rows)
    with matmul_precision_context(cfg.matmul_precision):
        return _decoder(params, cfg).init_cache(params.decoder, cfg.decoder, prepare(params, cfg, memory), rows)


def advance(
    params: Params, cfg: ModelConfig, memory: Memory, cache: Tree, tokens: Array, *, key: Key | None = None
) -> tuple[Array, Array, Tree]:
    """Read tokens [N, T]; return features [N, T, O] for `logits`, attention [N, T, S] and the cache.

    The attention is the mean over the layers that attend, or that of the last one if `averages_attention` of the
    decoder's config is False. It is zero if no layer attends.
    """
    features, layers, cache = advance_in_layers(params, cfg, memory, cache, tokens, key=key)
    if not layers:
        attention = jnp.zeros((*tokens.shape, memory.mask.shape[1]), accumulation_dtype(features.dtype))
    elif cfg.decoder.averages_attention and len(layers) > 1:
        attention = jnp.mean(jnp.stack(layers), axis=0)
    else:
        attention = layers[-1]
    return features, attention, cache


def advance_in_layers(
    params: Params, cfg: ModelConfig, memory: Memory, cache: Tree, tokens: Array, *, key: Key | None = None
) -> tuple[Array, tuple[Array, ...], Tree]:
    """Like `advance`, but return a separate attention [N, T, S] for each of `cfg.decoder.attention_names`."""
    check_params(params, Params)
    check_tokens("tokens", tokens)
    check_memory(memory, len(tokens))
    check_cache(cache, len(tokens))
    decoder = _decoder(params, cfg)
    check_record("cache", cache, decoder.init_cache, cfg.decoder.kind)
    memory = prepare(params, cfg, memory)
    with matmul_precision_context(cfg.matmul_precision):
        return decoder.advance(
            params.decoder, cfg.decoder, memory, cache, tokens, rate=cfg.dropout, key=key, execution=cfg.execution
        )


def logits(params: Params, cfg: ModelConfig, features: Array, *, layer: Affine | None = None) -> Array:
    """Unnormalised log-probabilities [..., V] of features [..., O], in float32 or better.

    Pass `layer` to use a softmax layer other than the model's own, such as one with fewer words (`output.columns`).
    """
    check_params(params, Params)
    check_features(features, cfg.decoder.features_dim(cfg.embedding_dim))
    with matmul_precision_context(cfg.matmul_precision):
        return output.logits(layer or output_layer(params, cfg, features.dtype), features)


def output_layer(params: Params, cfg: ModelConfig, dtype: DTypeLike) -> Affine:
    """Return the softmax layer (section 3.2): kernel [O, V] in `dtype`, bias [V] in float32 or better."""
    return _decoder(params, cfg).output_layer(params.decoder, dtype)


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
