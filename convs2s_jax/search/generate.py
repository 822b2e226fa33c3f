"""The compiled programs: encode a batch, search or score given targets, and return the attention."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from convs2s_jax.core.compiler_options import jit_quickly
from convs2s_jax.core.tokens import PAD
from convs2s_jax.models import conversion
from convs2s_jax.models import encoder_decoder as model
from convs2s_jax.models.checks import check_pairs
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.nn import output
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.types import accumulation_dtype
from convs2s_jax.search import rules
from convs2s_jax.search.batching import AXIS
from convs2s_jax.search.beam import StepFunction, beam_search
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.ensemble import ModelConfigs, Models, members_of
from convs2s_jax.search.hypotheses import Hypotheses, normalised
from convs2s_jax.search.options import SearchOptions, checked_options
from convs2s_jax.search.request import Request
from convs2s_jax.search.shortlist import Selection
from convs2s_jax.search.strategies import Strategy

ROWS = 8
"""Number of given targets whose logits are in memory at once."""
FLOOR = 1e-9
"""Minimum coverage of a source position in a score, so that a word without attention costs 21 nats, not infinity."""

_Members = tuple[Params, ...]
_Cfgs = tuple[ModelConfig, ...]
_Memories = tuple[Any, ...]
_Rows = TypeVar("_Rows")
"""A tree with the sentences on axis 0 of every leaf."""
_Local = Callable[[tuple[_Members, SearchOptions], Array, _Rows], tuple[Hypotheses, Array | None]]
"""The function that one device runs: (replicated inputs, sources, another tree of its sentences) -> results."""


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
) -> tuple[Hypotheses, Array | None]:
    """Encode one batch and search for its translations. Compiled once per shape, `limit`, strategy and structure.

    Args:
      params: merged parameters of the members of an ensemble; with `lm_weight`, those of the language model come last.
      cfgs: their model configurations.
      options: the options of the search.
      src: [B, S] int32, with the end symbol, then PAD.
      request: requests for the B sentences; with a selection, its tokens are indices into the selected words.
      limit: L, length of the results in symbols.
      strategy: as in `beam_search`.
      selection: words that the translations may use, the same for all members; None for all words.
      attention: whether to return the attention weights.
      mesh: devices that the sentences are sharded over, each of which searches its own shard; None for one device.

    Returns:
      Hypotheses [B, W, L], and the attention [B, W, L, S] behind each symbol, averaged over the members (except a
      language model, which has none), or None.
    """

    def local(
        shared: tuple[_Members, SearchOptions], src: Array, rows: tuple[Request, Selection | None]
    ) -> tuple[Hypotheses, Array | None]:
        (members, options), (request, selection) = shared, rows
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

    return _spread(local, mesh)((params, options), src, (request, selection))


def force(
    params: Models,
    cfg: ModelConfigs,
    search: SearchConfig | SearchOptions,
    src: Array,
    tgt: Array,
    *,
    attention: bool = False,
) -> tuple[Hypotheses, Array | None]:
    """Score given targets of one batch, with the scores that the search would report. This is `score` for arrays.

    It works under `jit`, `grad` and `vmap`, with respect to parameters and numbers of `search`.

    Args:
      params, cfg: as in `translate`.
      search: temperature, penalties and normalisation. Under `jit`, a `SearchConfig` and `cfg` are static.
      src: [B, S] token ids with the end symbol, then PAD.
      tgt: [B, L] token ids with the end symbol, then PAD; a row with only PAD has score -inf.
      attention: whether to return the attention weights.

    Returns:
      Hypotheses [B, 1, L], and the attention [B, 1, L, S] behind each symbol or None.

    Raises:
      ValueError, TypeError: arrays, models or options that do not fit together.
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
) -> tuple[Hypotheses, Array | None]:
    """`force` as a compiled program: one pass, all positions at once. Arguments are those of `generate` and `force`."""

    def local(shared: tuple[_Members, SearchOptions], src: Array, tgt: Array) -> tuple[Hypotheses, Array | None]:
        options = shared[1]
        params, memory = _encoded(shared[0], cfgs, src)
        features, attended = _read(params, cfgs, memory, tgt)
        weights = _mean(attended, options)

        def one(row: tuple[list[Array], Array]) -> Array:
            features, tokens = row
            logits = [model.logits(p, c, f) for p, c, f in zip(params, cfgs, features, strict=True)]
            log_probs = rules.log_probabilities(_joined(logits, options), options)
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

    return _spread(local, mesh)((params, options), src, tgt)


def coverage_penalty(coverage: Array, mask: Array) -> Array:
    """Return equation 14 of Wu et al. 2016 without its weight: the sum over source positions of log min(coverage, 1).

    Args:
      coverage: [N, S], attention that each position received from all target positions.
      mask: [N, S], True at real positions.

    Returns:
      [N] float32, like all scores.
    """
    return jnp.sum(jnp.where(mask, jnp.log(jnp.clip(coverage, FLOOR, 1.0)), 0.0), axis=-1).astype(jnp.float32)


def _spread(local: _Local[_Rows], mesh: Mesh | None) -> _Local[_Rows]:
    """Shard a function over the sentences: each device runs it on its own shard, with the replicated inputs."""
    if mesh is None:
        return local
    return jax.shard_map(local, mesh=mesh, in_specs=(P(), P(AXIS), P(AXIS)), out_specs=P(AXIS), check_vma=False)


def _encoded(params: _Members, cfgs: _Cfgs, src: Array) -> tuple[_Members, _Memories]:
    """Return the parameters in the dtype of each member, and the encoded source as its decoder reads it."""
    params = tuple(conversion.cast(p, c) for p, c in zip(params, cfgs, strict=True))
    memory = (model.prepare(p, c, model.encode(p, c, src)) for p, c in zip(params, cfgs, strict=True))
    return params, tuple(memory)


def _step(params: _Members, cfgs: _Cfgs, options: SearchOptions, words: Array | None) -> StepFunction:
    """Return the step function of all members, as `beam_search` expects it.

    Its memory is that of the members and `Selection.allowed`. Its cache is that of the members and the attention
    [N, S] that source positions have received so far, None without a coverage penalty. With the `words` [U] of a
    selection, it reads and scores indices into them.
    """
    layers: list[Affine | None] = [None] * len(params)
    if words is not None:
        full = (model.output_layer(p, c, c.dtype) for p, c in zip(params, cfgs, strict=True))
        layers = [output.columns(layer, words) for layer in full]

    def step(memory: Any, cache: Any, last: Array) -> tuple[Array | rules.Fused, Any]:
        (memories, allowed), (caches, covered) = memory, cache
        tokens = last if words is None else words[last]
        logits, weights, caches = zip(
            *(
                model.decode(p, c, m, k, tokens[:, None], layer=layer)
                for p, c, m, k, layer in zip(params, cfgs, memories, caches, layers, strict=True)
            ),
            strict=True,
        )
        if covered is not None:
            covered = covered + _mean(weights, options)[:, 0]
        scores = _joined([x[:, 0] for x in logits], options)
        if words is not None:
            mask = jnp.repeat(allowed, len(last) // len(allowed), axis=0)
            scores = jax.tree.map(
                lambda x: jnp.where(jax.lax.expand_dims(mask, range(x.ndim - 2)), x, -jnp.inf), scores
            )
        return scores, (caches, covered)

    return step


def _joined(logits: Sequence[Array], options: SearchOptions) -> Array | rules.Fused:
    """Combine logits [N, V] of all members into the form that `rules.log_probabilities` expects."""
    if options.lm_weight is not None:
        *logits, lm = logits
        return rules.Fused(model=jnp.stack(logits), lm=lm)
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
    inputs = model.decoder_inputs(tokens)
    features, weights = [], []
    for p, c, m in zip(params, cfgs, memory, strict=True):
        f, a, _ = model.advance(p, c, m, model.init_cache(p, c, m, len(tokens)), inputs)
        features.append(f)
        weights.append(a)
    return features, weights
