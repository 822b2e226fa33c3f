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
from convs2s_jax.models import encoder_decoder as model
from convs2s_jax.models import output
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.nn import struct
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.types import accumulation_dtype
from convs2s_jax.search import rules
from convs2s_jax.search.beam import search
from convs2s_jax.search.callbacks import StepFunction
from convs2s_jax.search.finished import normalised
from convs2s_jax.search.hypotheses import Hypotheses
from convs2s_jax.search.numbers import Numbers
from convs2s_jax.search.request import Request
from convs2s_jax.search.shortlist import Selection
from convs2s_jax.search.strategies.base import Strategy
from convs2s_jax.search.structure import Structure

AXIS = "device"
ROWS = 8
"""Number of given targets whose logits are in memory at once."""
FLOOR = 1e-9
"""Minimum coverage of a source position in a score, so that a word without attention costs 21 nats, not infinity."""


@struct.dataclass
class EnsembleCache:
    """The state that decoding carries from symbol to symbol.

    Attributes:
      members: caches of the members of an ensemble, N rows each.
      coverage: [N, S], the attention that source positions have received so far; None without a coverage penalty.
    """

    members: tuple[Any, ...]
    coverage: Array | None


@jit_quickly(static_argnames=("cfgs", "strategy", "structure", "limit", "attention", "mesh"))
def generate(
    params: tuple[Params, ...],
    cfgs: tuple[ModelConfig, ...],
    strategy: Strategy,
    structure: Structure,
    numbers: Numbers,
    src: Array,
    request: Request,
    *,
    limit: int,
    selection: Selection | None = None,
    attention: bool = False,
    mesh: Mesh | None = None,
) -> tuple[Hypotheses, Array | None]:
    """Encode one batch and search for its translations. Compiled once per shape, `limit`, strategy and structure.

    Args:
      params: merged parameters of the members of an ensemble; with `structure.language_model`, those of the language
        model come last.
      cfgs: their model configurations.
      strategy, structure, numbers: strategy and options of the search.
      src: [B, S] int32, with the end symbol, then PAD.
      request: requests for the B sentences; with a selection, its tokens are indices into the selected words.
      limit: L, length of the results in symbols.
      selection: words that the translations may use, the same for all members; None for all words.
      attention: whether to return the attention weights.
      mesh: devices that the sentences are sharded over, each of which searches its own shard; None for one device.

    Returns:
      Hypotheses [B, W, L], and the attention [B, W, L, S] behind each symbol, averaged over the members (except a
      language model, which has none), or None.
    """

    def local(shared: _Shared, src: Array, rows: _Asked) -> tuple[Hypotheses, Array | None]:
        request, selection = rows
        members, numbers = shared
        if structure.beam_size == 1:
            members = tuple(model.for_one_hypothesis(p, c) for p, c in zip(members, cfgs, strict=True))
        params, memory = _encoded(members, cfgs, src)
        cache = _start(params, cfgs, structure, memory, src)
        inputs: tuple[Any, ...] = memory
        if selection is None:
            step = _step(params, cfgs, structure)
        else:
            words, inputs = selection.words[0], (*memory, selection.allowed)
            step = _restrict_step(_step(params, cfgs, structure, words), words)
        found = search(
            step, strategy, numbers, inputs, cache, request, structure=structure, limit=limit, coverage=_coverage
        )
        if selection is not None:
            found = dataclasses.replace(found, tokens=words[found.tokens])
        if not attention:
            return found, None
        B, W, L = found.tokens.shape
        _, weights = _read(params, cfgs, memory, found.tokens.reshape(B * W, L))
        return found, _mean(weights, structure).reshape(B, W, L, -1)

    return _spread(local, mesh)((params, numbers), src, (request, selection))


@partial(jax.jit, static_argnames=("cfgs", "structure", "attention", "mesh"))
def force(
    params: tuple[Params, ...],
    cfgs: tuple[ModelConfig, ...],
    structure: Structure,
    numbers: Numbers,
    src: Array,
    tgt: Array,
    *,
    attention: bool = False,
    mesh: Mesh | None = None,
) -> tuple[Hypotheses, Array | None]:
    """Score given targets in one pass, all positions at once, with the scores that the search would give them.

    Args:
      params, cfgs, structure, numbers, attention, mesh: as in `generate`.
      src: [B, S] int32, with the end symbol, then PAD.
      tgt: [B, L] int32, with the end symbol, then PAD; a row with only PAD has score -inf.

    Returns:
      Hypotheses [B, 1, L] and the attention [B, 1, L, S] or None.
    """

    def local(shared: _Shared, src: Array, tgt: Array) -> tuple[Hypotheses, Array | None]:
        numbers = shared[1]
        params, memory = _encoded(shared[0], cfgs, src)
        features, attended = _read(params, cfgs, memory, tgt)
        weights = _mean(attended, structure)

        def one(row: tuple[list[Array], Array]) -> Array:
            features, tokens = row
            logits = [model.logits(p, c, f) for p, c, f in zip(params, cfgs, features, strict=True)]
            log_probs = rules.log_probabilities(_joined(logits, structure), numbers)
            scores = log_probs + rules.symbol_prices(numbers, log_probs.shape[-1])[None, :]
            return jnp.take_along_axis(scores, tokens[:, None], axis=-1)[:, 0]

        real = tgt != PAD
        scores = jax.lax.map(one, (features, tgt), batch_size=min(ROWS, len(tgt)))  # a few rows at once: V is large
        token_scores = jnp.where(real, scores, 0.0)
        lengths = jnp.sum(real, axis=-1, dtype=jnp.int32)
        score = normalised(structure, numbers, jnp.sum(token_scores, axis=-1), jnp.maximum(lengths, 1))
        if structure.coverage:
            got = jnp.sum(jnp.where(real[..., None], weights, 0.0), axis=1)
            score = score + numbers.coverage_penalty * coverage_penalty(got, memory[0].mask)
        score = jnp.where(lengths > 0, score, -jnp.inf)
        found = Hypotheses(tgt.astype(jnp.int32)[:, None], lengths[:, None], score[:, None], token_scores[:, None])
        return found, weights[:, None] if attention else None

    return _spread(local, mesh)((params, numbers), src, tgt)


def coverage_penalty(coverage: Array, mask: Array) -> Array:
    """Return equation 14 of Wu et al. 2016 without its weight: the sum over source positions of log min(coverage, 1).

    Args:
      coverage: [N, S], attention that each position received from all target positions.
      mask: [N, S], True at real positions.

    Returns:
      [N] float32, like all scores.
    """
    return jnp.sum(jnp.where(mask, jnp.log(jnp.clip(coverage, FLOOR, 1.0)), 0.0), axis=-1).astype(jnp.float32)


_Members = tuple[Params, ...]
"""Parameters of the members of an ensemble."""
_Shared = tuple[_Members, Numbers]
"""What is replicated on all devices: parameters and the numbers of the search."""
_Asked = tuple[Request, Selection | None]
"""The requests for the sentences, and the words that they may use."""
_Rows = TypeVar("_Rows")
"""A tree with the sentences on axis 0 of every leaf."""
_Results = TypeVar("_Results")
_Local = Callable[[_Shared, Array, _Rows], _Results]
"""The function that one device runs: (replicated inputs, sources, another tree of its sentences) -> results."""


def _spread(local: _Local[_Rows, _Results], mesh: Mesh | None) -> _Local[_Rows, _Results]:
    """Shard a function over the sentences: each device runs it on its own shard, with the replicated inputs."""
    if mesh is None:
        return local
    return jax.shard_map(local, mesh=mesh, in_specs=(P(), P(AXIS), P(AXIS)), out_specs=P(AXIS), check_vma=False)


def _encoded(params: _Members, cfgs: tuple[ModelConfig, ...], src: Array) -> tuple[_Members, tuple[Any, ...]]:
    """Return the parameters in the dtype of each member, and the encoded source as its decoder reads it."""
    params = tuple(model.cast(p, c) for p, c in zip(params, cfgs, strict=True))
    memory = (model.prepare(p, c, model.encode(p, c, src)) for p, c in zip(params, cfgs, strict=True))
    return params, tuple(memory)


def _start(
    params: _Members, cfgs: tuple[ModelConfig, ...], structure: Structure, memory: tuple[Any, ...], src: Array
) -> EnsembleCache:
    """Return empty caches of N = B * W rows."""
    rows = src.shape[0] * structure.beam_size
    members = tuple(model.init_cache(p, c, m, rows) for p, c, m in zip(params, cfgs, memory, strict=True))
    dtype = accumulation_dtype(jnp.result_type(*(jax.tree.leaves(p)[0] for p in params)))  # that of the attention
    coverage = jnp.zeros((rows, src.shape[1]), dtype) if structure.coverage else None
    return EnsembleCache(members, coverage)


def _step(
    params: _Members, cfgs: tuple[ModelConfig, ...], structure: Structure, words: Array | None = None
) -> StepFunction:
    """Return the step function of all members, as `search` expects it; with `words` [U], it scores those only."""
    layers: list[Affine | None] = [None] * len(params)
    if words is not None:
        full = (model.output_layer(p, c, c.dtype) for p, c in zip(params, cfgs, strict=True))
        layers = [output.columns(layer, words) for layer in full]

    def step(memory: Any, cache: EnsembleCache, last: Array) -> tuple[Array | rules.Fused, EnsembleCache]:
        logits, weights, caches = zip(
            *(
                model.decode(p, c, m, k, last[:, None], layer=layer)
                for p, c, m, k, layer in zip(params, cfgs, memory, cache.members, layers, strict=True)
            ),
            strict=True,
        )
        coverage = cache.coverage
        if coverage is not None:
            coverage = coverage + _mean(weights, structure)[:, 0]
        return _joined([x[:, 0] for x in logits], structure), EnsembleCache(caches, coverage)

    return step


def _restrict_step(step: StepFunction, words: Array) -> StepFunction:
    """Wrap a step so that it reads and scores indices into `words`; `allowed` is the last entry of its memory.

    Args:
      step: a step that reads ids and scores these words.
      words: [U], the ids of a selection's words.
    """

    def restricted(memory: Any, cache: EnsembleCache, last: Array) -> tuple[Array | rules.Fused, EnsembleCache]:
        *members, allowed = memory
        scores, cache = step(members, cache, words[last])
        mask = jnp.repeat(allowed, len(last) // len(allowed), axis=0)

        def masked(logits: Array) -> Array:
            return jnp.where(jax.lax.expand_dims(mask, range(logits.ndim - 2)), logits, -jnp.inf)

        return jax.tree.map(masked, scores), cache

    return restricted


def _joined(logits: Sequence[Array], structure: Structure) -> Array | rules.Fused:
    """Combine logits [N, V] of all members into the form that `rules.log_probabilities` expects."""
    if structure.language_model:
        *logits, lm = logits
        return rules.Fused(model=jnp.stack(logits), lm=lm)
    return jnp.stack(logits) if len(logits) > 1 else logits[0]


def _mean(weights: Sequence[Array], structure: Structure) -> Array:
    """Average the attention [N, T, S] over the members that read the source."""
    return jnp.mean(jnp.stack(weights[: len(weights) - structure.language_model]), axis=0)


def _coverage(memory: Any, cache: EnsembleCache) -> Array:
    """The `coverage` function that is passed to `search`; it returns [N]."""
    assert cache.coverage is not None
    mask = memory[0].mask
    return coverage_penalty(cache.coverage, jnp.repeat(mask, cache.coverage.shape[0] // mask.shape[0], axis=0))


def _read(
    params: _Members, cfgs: tuple[ModelConfig, ...], memory: tuple[Any, ...], tokens: Array
) -> tuple[list[Array], list[Array]]:
    """Return each member's features at all positions of targets [N, L], and its attention [N, L, S]."""
    inputs = model.decoder_inputs(tokens)
    features, weights = [], []
    for p, c, m in zip(params, cfgs, memory, strict=True):
        cache = model.init_cache(p, c, m, len(tokens))
        f, a, _ = model.advance(p, c, m, cache, inputs)
        features.append(f)
        weights.append(a)
    return features, weights
