"""Beam search for any network, given a step function and a cache. Hypotheses are stored as back-pointers.

The procedure is that of fairseq's `SequenceGenerator`. Among the 2W best continuations of a sentence's W live
hypotheses, those that end are finished if they rank among the first W, and dropped otherwise. The first W others stay
alive, so that the beam never shrinks. It differs from fairseq in the stopping rule (`SearchConfig.stop`), and a
sentence's result depends on nothing but the sentence. A `Strategy` chooses the 2W continuations: the best ones,
samples, or phrases that must occur. Everything else is shared.

A batch has B sentences with a beam of W each. The network sees N = B * W rows, with those of a sentence adjacent. At
the first symbol of a plain search it sees B rows, because all hypotheses are equal.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.nn import struct
from convs2s_jax.nn.gradient import forward_only
from convs2s_jax.nn.types import accumulation_dtype
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.hypotheses import (
    STOPPING_RULES,
    BackPointers,
    Finished,
    Hypotheses,
    StoppingRule,
    finish,
    pick,
    trace,
)
from convs2s_jax.search.options import SearchOptions, checked_options, in_dtype
from convs2s_jax.search.requests import Request
from convs2s_jax.search.strategies import CONSTRAINED, PLAIN, SAMPLED, SearchStep, State, Strategy

StepMemory = Any
"""A pytree whose leaves have the B sentences on axis 0: the constant inputs of a step."""
StepCache = Any
"""A pytree whose leaves have the N rows on axis 0."""
StepFunction = Callable[[StepMemory, StepCache, Array], tuple[Array, StepCache]]
Coverage = Callable[[StepMemory, StepCache], Array]
LEAST_ROWS = 8
"""Minimum size of the smaller batch that the second half of the sentences continues in."""


@dataclass(frozen=True)
class Search:
    """The constants of a search; the fields are arguments of `beam_search`."""

    step: StepFunction
    strategy: Strategy
    stop: StoppingRule
    options: SearchOptions
    coverage: Coverage | None
    limit: int


@struct.dataclass
class Beams:
    """The state between two steps.

    Attributes:
      step: [], number of tokens that live hypotheses have.
      last: [B, W], the last symbol of each hypothesis.
      totals: [B, W], cumulative scores; -inf for hypotheses that may not be continued.
      cache: [N, ...], the network's cache.
      finished: [B, W], the best finished hypotheses.
      history: [B, W, L], tokens so far; L = 0 if no rule needs them.
      state: [B, W, ...], the strategy's state.
    """

    step: Array
    last: Array
    totals: Array
    cache: StepCache
    finished: Finished
    history: Array
    state: State


NO_REVERSE = (
    "the loop of a search has no derivative in reverse mode, because it stops when all sentences are done: pass "
    "fixed_length=True to beam_search, or use jax.jvp; `force` has the scores of given targets in both modes"
)


@struct.dataclass
class SearchBatch:
    """Sentences that are searched together.

    Attributes:
      indices: [B], their indices among all sentences.
      memory: [B, ...], constant inputs of the network's step.
      request: [B, ...], their requests.
      beams: the state of their search.
      chosen: [steps, B, W], the choices of each step.
    """

    indices: Array
    memory: StepMemory
    request: Request
    beams: Beams
    chosen: BackPointers


def beam_search(
    step: StepFunction,
    search: SearchConfig | SearchOptions,
    *,
    memory: StepMemory,
    cache: StepCache,
    request: Request,
    limit: int,
    strategy: Strategy | None = None,
    fixed_length: bool = False,
    coverage: Coverage | None = None,
) -> Hypotheses:
    """Find the best hypotheses of B sentences with any step function, or draw samples.

    When half of the sentences are done, the others continue in a smaller batch, so that a few long sentences do not
    keep all rows busy. The sizes are static, and the whole search is one program.

    The scores are functions of the numbers in `SearchOptions` and work with `jax.vmap` and `jax.jvp`. `jax.grad`
    needs `fixed_length`. The derivative is that of the hypotheses found, as if the choice were constant. For an
    unbiased gradient of an expected reward of samples (REINFORCE), differentiate the reward times the sum of
    `sampler_log_probs`, not of `token_scores`. Scores are in float32, or in float64 if the logits are.

    Args:
      step: one step of the network, a pure function (memory, cache, last tokens [N]) -> (logits, new cache). EOS is
        fed first. Logits may be log-probabilities. They are [N, V], or [M, N, V] for the M members of an ensemble, of
        which the last is a language model if `search` has an `lm_weight`. The hypotheses of a sentence are adjacent. N
        changes from call to call: it is usually B at the first symbol, then B * W with W = `search.beam_size`, and less
        once sentences are done. So take inputs of rows and sentences from `memory` and `cache`, which are sliced to the
        same rows.
      search: the options; a `SearchConfig` is static under `jit`. For numbers that are traced, mapped or
        differentiated, pass `search_options(config).replace(length_penalty=...)`.
      memory: constant inputs of `step`, with the B sentences on axis 0 of every leaf.
      cache: the state before the start symbol, with N = B * W rows on axis 0 of every leaf.
      request: length bounds, prefixes, phrases and keys of each sentence; `max_lengths` are clipped to `limit - 1`.
      limit: L, static length of the results in symbols, including the end symbol.
      strategy: how candidates are chosen and when a sentence is done, instead of what `search` and the phrases select.
      fixed_length: whether to take `limit` steps, instead of a loop that stops when all sentences are done, which
        `jax.grad` cannot reverse.
      coverage: (memory, cache after a step) -> [N], the sum over source positions of log min(attention, 1), for the
        coverage penalty.

    Returns:
      Hypotheses, best first.

    Raises:
      ValueError: the rows of memory, cache or logits do not fit; `coverage`, keys or the logits of a language model are
        missing; the strategy supports no phrases.
    """
    options = checked_options(search)
    B, W = request.max_lengths.shape[0], options.beam_size
    selected = SAMPLED if options.sampling else CONSTRAINED if request.phrases.shape[1] else PLAIN
    strategy = strategy or selected
    if request.phrases.shape[1] and not strategy.meets_phrases:
        raise ValueError("phrases work with plain beam search only: leave out sampling and strategies")
    if strategy is SAMPLED and request.keys is None:
        raise ValueError("sampling needs a random key for each sentence: pass keys in the request")
    if options.coverage_penalty is not None and coverage is None:
        raise ValueError("coverage is None, but the search has a coverage penalty: pass coverage")
    cache = jax.tree.map(jnp.asarray, cache)
    for name, rows, tree in (("memory", B, memory), ("cache", B * W, cache)):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if jnp.shape(leaf)[:1] != (rows,):
                where = f"{name}{jax.tree_util.keystr(path)}"
                raise ValueError(f"{where} has shape {jnp.shape(leaf)}: axis 0 must have {rows} rows")
    rule = strategy.stop or STOPPING_RULES[options.stop]
    logits, _ = jax.eval_shape(step, memory, cache, jax.ShapeDtypeStruct((B * W,), jnp.int32))
    V, dtype = logits.shape[-1], accumulation_dtype(logits.dtype)
    fixed = Search(step, strategy, rule, in_dtype(options, dtype), coverage, limit)
    batch = _begin(fixed, memory, cache, request, dtype)
    if strategy.first_step_on_one_row and 1 < W <= V // 2:
        batch = _first(fixed, batch)
    nothing = Hypotheses(
        tokens=jnp.full((B, W, limit), PAD, jnp.int32),
        lengths=jnp.zeros((B, W), jnp.int32),
        scores=jnp.full((B, W), -jnp.inf, dtype),
        token_scores=jnp.zeros((B, W, limit), dtype),
        sampler_log_probs=jnp.zeros((B, W, limit), dtype) if strategy.draws else None,
    )
    half = B // 2 if B // 2 >= LEAST_ROWS and not fixed_length else 0
    if fixed_length:
        batch, _ = lax.scan(lambda batch, _: (_advanced(fixed, batch), None), batch, length=limit)
    else:
        batch = _run(fixed, batch, half)
    found = _collected(batch, nothing)
    if not half:
        return found

    def rest(batch: SearchBatch) -> Hypotheses:
        return _collected(_run(fixed, _compact(batch, half), 0), found)

    return lax.cond(jnp.any(_alive(batch)), rest, lambda _: found, batch)


def _begin(search: Search, memory: StepMemory, cache: StepCache, request: Request, dtype: Any) -> SearchBatch:
    """Return the state before the first step. If hypotheses start equal, only the first of a sentence is continued."""
    options, strategy = search.options, search.strategy
    B, W = request.max_lengths.shape[0], options.beam_size
    request = replace(request, max_lengths=jnp.clip(request.max_lengths, 0, search.limit - 1).astype(jnp.int32))
    dead, zero = jnp.full((B, W), -jnp.inf, dtype), jnp.zeros((B, W), jnp.int32)
    beams = Beams(
        step=jnp.int32(0),
        last=jnp.full((B, W), EOS, jnp.int32),
        totals=dead.at[:, : 1 if strategy.starts_as_one else W].set(0.0),
        cache=cache,
        finished=Finished(dead, dead, zero, zero, jnp.zeros_like(dead) if strategy.draws else None),
        history=jnp.zeros((B, W, search.limit if options.no_repeat_ngram else 0), jnp.int32),
        state=strategy.start(request, W),
    )
    none, scores = (jnp.zeros((search.limit, B, W), kind) for kind in (jnp.int32, dtype))
    chosen = BackPointers(none, none, scores, scores if strategy.draws else None)
    return SearchBatch(jnp.arange(B, dtype=jnp.int32), memory, request, beams, chosen)


def _first(search: Search, batch: SearchBatch) -> SearchBatch:
    """Take the first step with one row per sentence, because all its hypotheses are equal before that step."""
    beams, W = batch.beams, search.options.beam_size
    one = replace(
        beams,
        last=beams.last[:, :1],
        totals=beams.totals[:, :1],
        cache=jax.tree.map(lambda x: x[::W], beams.cache),
        history=beams.history[:, :1],
        state=jax.tree.map(lambda x: x[:, :1], beams.state),
    )
    return _advanced(search, batch, one)


def _advanced(search: Search, batch: SearchBatch, beams: Beams | None = None) -> SearchBatch:
    """Advance the beams of a batch, or these in their place, by one symbol, and note what the step chose."""
    beams = beams or batch.beams
    after, new = advance(search, replace(batch, beams=beams))
    at = partial(lax.dynamic_update_index_in_dim, index=beams.step, axis=0)
    return replace(batch, beams=after, chosen=jax.tree.map(at, batch.chosen, new))


def _collected(batch: SearchBatch, found: Hypotheses) -> Hypotheses:
    """Return the hypotheses of all sentences, with those of a batch updated to what it has finished so far."""
    new = trace(batch.beams.finished, batch.chosen)
    return jax.tree.map(lambda x, y: x.at[batch.indices].set(y), found, new)


def _run(search: Search, batch: SearchBatch, smaller: int) -> SearchBatch:
    """Advance until at most `smaller` sentences are alive."""

    def live(batch: SearchBatch) -> Array:
        return jnp.sum(_alive(batch), dtype=jnp.int32) > smaller

    return forward_only(lax.while_loop(live, partial(_advanced, search), batch), NO_REVERSE)


def _alive(batch: SearchBatch) -> Array:
    """Return which sentences have a live hypothesis, [B]."""
    return jnp.any(batch.beams.totals > -jnp.inf, axis=-1)


def _compact(batch: SearchBatch, size: int) -> SearchBatch:
    """Reduce a batch to `size` sentences: all live ones, filled up with finished ones."""
    B = batch.indices.shape[0]
    keep = jnp.argsort(~_alive(batch), stable=True)[:size]

    def take(x: Array, axis: int = 0) -> Array:
        if x.ndim <= axis:
            return x  # the step
        each = x.shape[axis] // B
        parts = x.reshape(*x.shape[:axis], B, each, *x.shape[axis + 1 :])
        return jnp.take(parts, keep, axis=axis).reshape(*x.shape[:axis], size * each, *x.shape[axis + 1 :])

    chosen = jax.tree.map(lambda x: take(x, 1), batch.chosen)
    rest = (batch.indices, batch.memory, batch.request, batch.beams)
    indices, memory, request, beams = jax.tree.map(take, rest)
    return SearchBatch(indices, memory, request, beams, chosen)


def advance(search: Search, batch: SearchBatch) -> tuple[Beams, BackPointers]:
    """Advance by one symbol: score all continuations, finish some, keep W alive, and stop the sentences that are done.

    Return the state after the step, and what the step chose.
    """
    options, strategy, request = search.options, search.strategy, batch.request
    beams, W = batch.beams, options.beam_size
    B, width = beams.last.shape
    logits, cache = search.step(batch.memory, beams.cache, beams.last.reshape(-1))
    _check_result(options, B * width, logits, cache)
    now = SearchStep(options, request, beams.step, beams.totals, beams.history, beams.state, logits)
    found = strategy.choose(now)
    if strategy.draws != (found.sampler_log_probs is not None):
        raise ValueError("a strategy with draws=True returns candidates with sampler_log_probs, and no other does")

    ends = found.tokens == EOS
    ended, parents, _, drawn = jax.tree.map(
        lambda x: x[:, :W], found._replace(totals=jnp.where(ends, found.totals, -jnp.inf))
    )
    covered = None
    if search.coverage is not None and options.coverage_penalty is not None:
        coverage = search.coverage(batch.memory, cache).reshape(B, width)
        covered = pick(coverage.astype(ended.dtype), parents)
    finished = finish(search.stop, options, beams.finished, beams.step, ended, parents, covered, drawn)
    first = jnp.argsort(ends, axis=-1, stable=True)[:, :W]  # a hypothesis ends at most once, so W of 2W stay alive
    totals, parents, tokens, drawn = jax.tree.map(lambda x: pick(x, first), found)

    best = jnp.max(totals, axis=-1)
    early = search.stop.is_done(options, finished, beams.step, best, request.max_lengths)
    done = (beams.step >= request.max_lengths) | early
    history = beams.history
    if history.shape[-1]:
        history = jnp.take_along_axis(history, parents[..., None], axis=1)
        history = lax.dynamic_update_slice_in_dim(history, tokens[..., None], beams.step, axis=2)
    if W > 1:
        rows = (jnp.arange(B, dtype=jnp.int32)[:, None] * width + parents).reshape(B * W)
        cache = jax.tree.map(lambda x: x.at[rows].get(mode="promise_in_bounds"), cache)
    after = Beams(
        step=beams.step + 1,
        last=tokens,
        totals=jnp.where(done[:, None], -jnp.inf, totals),
        cache=cache,
        finished=finished,
        history=history,
        state=strategy.follow(beams.state, request, parents, tokens),
    )
    return after, BackPointers(tokens, parents, after.totals, drawn)


def _check_result(options: SearchOptions, rows: int, logits: Array, cache: StepCache) -> None:
    """Reject what a step returns for `rows` last symbols if its rows do not fit."""
    if logits.ndim not in (2, 3) or logits.shape[-2] != rows or (options.lm_weight is not None and logits.ndim == 2):
        raise ValueError(
            f"logits of the step have shape {logits.shape}: expected [N, V], or [M, N, V] for an ensemble and with a "
            f"language model, with N = {rows} rows, one for each last token of this call; take inputs of rows from "
            "cache or memory"
        )
    if any(x.shape[:1] != (rows,) for x in jax.tree.leaves(cache)):
        raise ValueError(f"the step returns a cache without {rows} rows on axis 0: return one of the shape it is given")
