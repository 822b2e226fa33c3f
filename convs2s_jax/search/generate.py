"""The compiled programs: encode a batch, search or score given targets, and return the attention."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from convs2s_jax.core.compiler_options import jit_quickly
from convs2s_jax.core.tokens import PAD
from convs2s_jax.models import conversion
from convs2s_jax.models import encoder_decoder as model
from convs2s_jax.models.checks import check_config, check_pairs, check_params
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.nn import output
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.types import accumulation_dtype
from convs2s_jax.search import rules
from convs2s_jax.search.batching import AXIS
from convs2s_jax.search.beam import StepFunction, beam_search
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.hypotheses import Hypotheses, normalised
from convs2s_jax.search.options import SearchOptions, checked_options, in_dtype
from convs2s_jax.search.requests import Request
from convs2s_jax.search.shortlist import Selection
from convs2s_jax.search.strategies import Strategy

ROWS = 8
"""Number of given targets whose logits are in memory at once."""

Models = Params | Sequence[Params]
"""One model, or an ensemble of several, of which the last may be a language model."""
ModelConfigs = ModelConfig | Sequence[ModelConfig]
_Members = tuple[Params, ...]
_Cfgs = tuple[ModelConfig, ...]
_Memories = tuple[Any, ...]
_Found = tuple[Hypotheses, Array | None]


def members_of(params: Models, cfg: ModelConfigs, options: SearchOptions) -> tuple[_Members, _Cfgs]:
    """Return the parameters and configs of all members of an ensemble, including the language model, as tuples.

    Raises:
      ValueError, TypeError: the numbers of parameters and configs differ, or their types are wrong; an `lm_weight`
        without a language model, or the reverse; a coverage penalty with a model that has no attention.
    """
    members = tuple(params) if isinstance(params, tuple | list) else (params,)
    cfgs = tuple(cfg) if isinstance(cfg, tuple | list) else (cfg,)
    if len(members) != len(cfgs) or not members:
        raise ValueError(f"params has {len(members)} entries and cfg {len(cfgs)}: pass one config for each model")
    for one, each in zip(members, cfgs, strict=True):
        check_config(each, ModelConfig)
        check_params(one, Params)
    if options.lm_weight is None and len({c.reads_source for c in cfgs}) > 1:
        raise ValueError("lm_weight is 0, but one of the models is a language model: set its weight, or leave it out")
    if options.lm_weight is not None and (len(members) == 1 or cfgs[-1].reads_source):
        raise ValueError("lm_weight is above 0: pass the language model, which reads no source, after the other models")
    reading = [c for c in cfgs if c.reads_source]
    if options.coverage_penalty is not None and not (reading and all(c.attends for c in reading)):
        raise ValueError("coverage_penalty is above 0, but a model has no attention to cover the source: use 0")
    return members, cfgs


def source_sizes(members: Sequence[Params], cfgs: Sequence[ModelConfig]) -> list[int]:
    """Return the number of source words of each model that reads a source."""
    reading = [(params, cfg) for params, cfg in zip(members, cfgs, strict=True) if cfg.reads_source]
    return [len(model.with_shared_table(params, cfg).encoder.embedding.table) for params, cfg in reading]


def target_size(members: Sequence[Params], cfgs: Sequence[ModelConfig]) -> int:
    """Return V, the number of words that the decoders score. Raises ValueError if that differs between members."""
    sizes = [len(_output_bias.eval_shape(params, cfg)) for params, cfg in zip(members, cfgs, strict=True)]
    if len(set(sizes)) > 1:
        raise ValueError(f"the models have {sizes} target words: an ensemble needs a common target vocabulary")
    return sizes[0]


@partial(jax.jit, static_argnums=1)  # for its cache of traces
def _output_bias(params: Params, cfg: ModelConfig) -> Array:
    return model.output_layer(params, cfg, cfg.dtype).b


@jit_quickly(static_argnames=("cfgs", "limit", "strategy", "attention", "mesh"))
def generate(
    params: _Members,
    cfgs: _Cfgs,
    options: SearchOptions,
    src: Array,
    request: Request,
    *,
    limit: int,
    strategy: Strategy | None = None,
    selection: Selection | None = None,
    attention: bool = False,
    mesh: Mesh | None = None,
) -> _Found:
    """Encode one batch and search for its translations. Compiled once per shape, `limit`, strategy and structure.

    Args:
      params: merged parameters of the members of an ensemble; with `lm_weight`, those of the language model come last.
      cfgs: their model configurations.
      options, limit, strategy: as in `beam_search`.
      src: [B, S] int32, with the end symbol, then PAD.
      request: requests for the B sentences; with a selection, its tokens are indices into the selected words.
      selection: words that the translations may use, the same for all members; None for all words.
      attention: whether to return the attention weights.
      mesh: devices that the sentences are sharded over, each of which searches its own shard; None for one device.

    Returns:
      Hypotheses [B, W, L], and the attention [B, W, L, S] behind each symbol, averaged over the members that read a
      source, or None.
    """

    def local(shared: tuple[_Members, SearchOptions], rows: tuple[Array, Request, Selection | None]) -> _Found:
        (members, options), (src, request, selection) = shared, rows
        if options.beam_size == 1:
            members = tuple(conversion.for_one_hypothesis(p, c) for p, c in zip(members, cfgs, strict=True))
        params, memory = _encoded(members, cfgs, src)
        N = src.shape[0] * options.beam_size
        caches = tuple(model.init_cache(p, c, m, N) for p, c, m in zip(params, cfgs, memory, strict=True))
        dtype = accumulation_dtype(jnp.result_type(*(jax.tree.leaves(p)[0] for p in params)))  # that of the attention
        covered = None if options.coverage_penalty is None else jnp.zeros((N, src.shape[1]), dtype)
        words, allowed = (None, None) if selection is None else (selection.words[0], selection.allowed)
        found = beam_search(
            _step(params, cfgs, options, words),
            options,
            memory=(memory, allowed),
            cache=(caches, covered),
            request=request,
            limit=limit,
            strategy=strategy,
            coverage=_coverage,
        )
        if words is not None:
            found = dataclasses.replace(found, tokens=words[found.tokens])
        if not attention:
            return found, None
        B, W, L = found.tokens.shape
        _, weights = _read(params, cfgs, memory, found.tokens.reshape(B * W, L))
        return found, _mean(weights, options).reshape(B, W, L, -1)

    return _spread(local, mesh)((params, options), (src, request, selection))


def force(
    params: Models,
    cfg: ModelConfigs,
    search: SearchConfig | SearchOptions,
    src: Array,
    tgt: Array,
    *,
    attention: bool = False,
) -> _Found:
    """Score given targets of one batch, with the scores that the search would report. This is `score` for arrays.

    It works under `jit`, `grad` and `vmap`, with respect to parameters and numbers of `search`.

    Args:
      params, cfg: as in `translate`.
      search: temperature, penalties and normalisation. Under `jit`, a `SearchConfig` and `cfg` are static.
      src, tgt: [B, S] and [B, L] token ids with the end symbol, then PAD; a target of only PAD has score -inf.
      attention: whether to return the attention weights.

    Returns:
      Hypotheses [B, 1, L], and the attention [B, 1, L, S] behind each symbol or None.
    """
    options = checked_options(search)
    members, cfgs = members_of(params, cfg, options)
    check_pairs(src, tgt)
    return scores_of(members, cfgs, options, src, tgt, attention=attention)


@partial(jax.jit, static_argnames=("cfgs", "attention", "mesh"))
def scores_of(
    params: _Members,
    cfgs: _Cfgs,
    options: SearchOptions,
    src: Array,
    tgt: Array,
    *,
    attention: bool = False,
    mesh: Mesh | None = None,
) -> _Found:
    """`force` as a compiled program: one pass, all positions at once. Arguments are those of `generate` and `force`."""

    def local(shared: tuple[_Members, SearchOptions], rows: tuple[Array, Array]) -> _Found:
        (members, options), (src, tgt) = shared, rows
        params, memory = _encoded(members, cfgs, src)
        features, attended = _read(params, cfgs, memory, tgt)
        options = in_dtype(options, accumulation_dtype(jnp.result_type(*features)))  # that of the logits
        weights = _mean(attended, options)

        def one(row: tuple[list[Array], Array]) -> Array:
            features, tokens = row
            logits = [model.logits(p, c, f) for p, c, f in zip(params, cfgs, features, strict=True)]
            log_probs = rules.log_probabilities(_joined(logits), options)
            scores = log_probs + rules.symbol_bias(options, log_probs.shape[-1])[None, :]
            return jnp.take_along_axis(scores, tokens[:, None], axis=-1)[:, 0]

        real = tgt != PAD
        scores = jax.lax.map(one, (features, tgt), batch_size=min(ROWS, len(tgt)))  # a few rows at once: V is large
        token_scores = jnp.where(real, scores, 0.0)
        lengths = jnp.sum(real, axis=-1, dtype=jnp.int32)
        score = normalised(options, jnp.sum(token_scores, axis=-1), jnp.maximum(lengths, 1))
        if options.coverage_penalty is not None:
            got = jnp.sum(jnp.where(real[..., None], weights, 0.0), axis=1)
            score = score + options.coverage_penalty * coverage_penalty(got, memory[0].mask)
        score = jnp.where(lengths > 0, score, -jnp.inf)
        found = Hypotheses(tgt.astype(jnp.int32)[:, None], lengths[:, None], score[:, None], token_scores[:, None])
        return found, weights[:, None] if attention else None

    return _spread(local, mesh)((params, options), (src, tgt))


def coverage_penalty(coverage: Array, mask: Array) -> Array:
    """Return equation 14 of Wu et al. 2016 without its weight: the sum over source positions of log min(coverage, 1).

    coverage [N, S] is the attention that each position received, and mask [N, S] is True at real ones; returns [N]. So
    that the sum is finite, the smallest normal number of the dtype (log = -87.3 in float32) is used in place of 0.
    """
    least = jnp.finfo(coverage.dtype).tiny
    return jnp.sum(jnp.where(mask, jnp.log(jnp.clip(coverage, least, 1.0)), 0.0), axis=-1)


def _spread(local: Callable[[Any, Any], _Found], mesh: Mesh | None) -> Callable[[Any, Any], _Found]:
    """Shard (replicated inputs, trees with the sentences on axis 0) -> results: each device runs its own sentences."""
    if mesh is None:
        return local
    return jax.shard_map(local, mesh=mesh, in_specs=(P(), P(AXIS)), out_specs=P(AXIS), check_vma=False)


def _encoded(params: _Members, cfgs: _Cfgs, src: Array) -> tuple[_Members, _Memories]:
    """Return the parameters in the dtype of each member, and the encoded source as its decoder reads it."""
    params = tuple(conversion.cast(p, c) for p, c in zip(params, cfgs, strict=True))
    memory = (model.prepare(p, c, model.encode(p, c, src)) for p, c in zip(params, cfgs, strict=True))
    return params, tuple(memory)


def _step(params: _Members, cfgs: _Cfgs, options: SearchOptions, words: Array | None) -> StepFunction:
    """Return the step function of all members, as `beam_search` expects it.

    Its memory is that of the members and `Selection.allowed`. Its cache is that of the members and the attention [N, S]
    received so far, None without a coverage penalty. With `words` [U], it reads and scores indices into them.
    """
    layers: list[Affine | None] = [None] * len(params)
    if words is not None:
        full = (model.output_layer(p, c, c.dtype) for p, c in zip(params, cfgs, strict=True))
        layers = [output.columns(layer, words) for layer in full]

    def step(memory: Any, cache: Any, last: Array) -> tuple[Array, Any]:
        (memories, allowed), (caches, covered) = memory, cache
        tokens = last if words is None else words[last]
        members = zip(params, cfgs, memories, caches, layers, strict=True)
        found = [model.decode(p, c, m, k, tokens[:, None], layer=layer) for p, c, m, k, layer in members]
        logits, weights, caches = zip(*found, strict=True)
        if covered is not None:
            covered = covered + _mean(weights, options)[:, 0].astype(covered.dtype)
        scores = _joined([x[:, 0] for x in logits])
        if words is not None:
            mask = jnp.repeat(allowed, len(last) // len(allowed), axis=0)
            scores = jnp.where(jax.lax.expand_dims(mask, range(scores.ndim - 2)), scores, -jnp.inf)
        return scores, (caches, covered)

    return step


def _joined(logits: Sequence[Array]) -> Array:
    """Combine logits [N, V] of all members into the form that `rules.log_probabilities` expects."""
    return jnp.stack(logits) if len(logits) > 1 else logits[0]


def _mean(weights: Sequence[Array], options: SearchOptions) -> Array:
    """Average the attention [N, T, S] over the members that read the source."""
    return jnp.mean(jnp.stack(weights if options.lm_weight is None else weights[:-1]), axis=0)


def _coverage(memory: Any, cache: Any) -> Array:
    """The `coverage` function that is passed to the search; it returns [N]."""
    (memories, _), (_, covered) = memory, cache
    return coverage_penalty(covered, jnp.repeat(memories[0].mask, covered.shape[0] // len(memories[0].mask), axis=0))


def _read(params: _Members, cfgs: _Cfgs, memory: _Memories, tokens: Array) -> tuple[list[Array], list[Array]]:
    """Return each member's features at all positions of targets [N, L], and its attention [N, L, S]."""
    inputs, features, weights = model.decoder_inputs(tokens), [], []
    for p, c, m in zip(params, cfgs, memory, strict=True):
        f, a, _ = model.advance(p, c, m, model.init_cache(p, c, m, len(tokens)), inputs)
        features.append(f)
        weights.append(a)
    return features, weights
