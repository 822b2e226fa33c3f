"""Beam search over any network: it knows a step function and a cache, and keeps hypotheses as back-pointers.

The procedure is fairseq's (`SequenceGenerator`): of the 2W best continuations of a sentence's W live hypotheses, ends
ranked among the first W are finished, ends ranked lower are dropped, and the first W others live on, so that the beam
never shrinks. It differs from fairseq in the stopping rule (`SearchConfig.stop`) and in that a sentence's result
depends on nothing but the sentence. Sampling, diverse groups and constraints are other ways to choose the 2W
continuations; all else is shared.

B sentences in a batch, G groups of W hypotheses for each (G = 1 but in diverse search), R = B * G. The network sees
N = R * W rows, those of a sentence side by side.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from jax import Array, lax

from convs2s_jax.core.tokens import EOS
from convs2s_jax.search import constraints, diverse, rules, sampling
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.constraints import Progress
from convs2s_jax.search.finished import finish, is_done
from convs2s_jax.search.hypotheses import Hypotheses, Trail, empty, merge_groups, pick, trace
from convs2s_jax.search.request import Request
from convs2s_jax.search.state import Batch, Beams, Cache, Memory, alive, begin, compact, reorder
from convs2s_jax.search.top import is_large, top, top_of_logits

Step = Callable[[Memory, Cache, Array], tuple[Array | rules.Fused, Cache]]
Coverage = Callable[[Memory, Cache], Array]

PHASES = 2
"""Sizes of a batch, each half of the one before: each takes a compilation of the step (docs/performance.md)."""
LEAST_ROWS = 8
"""Batches do not get smaller than this."""


def search(
    step: Step,
    cfg: SearchConfig,
    memory: Memory,
    cache: Cache,
    request: Request,
    *,
    limit: int,
    chunk: int = 1,
    start: int = EOS,
    coverage: Coverage | None = None,
) -> Hypotheses:
    """Find the best hypotheses of B sentences, or draw samples.

    Whenever half of the sentences are done, the others are moved together and go on in a smaller batch, so that one
    long sentence does not hold the others' work. The sizes are static: everything is one program.

    Args:
      step: one step of the network; pure. It gets memory, cache and the last symbol [N] of every live hypothesis and
        returns logits or log-probabilities, [N, V] or [M, N, V] of the M members of an ensemble, or either beside
        those of a language model (`rules.Fused`), and the new cache; softmax, temperature and penalties are applied
        here.
      cfg: the options; `max_length_a` and `max_length_b` are not read here.
      memory: what `step` reads: the B sentences on axis 0 of every leaf.
      cache: the state before the start symbol, rows [N = B * beam_size] on axis 0 of every leaf.
      request: what is asked of each sentence; of `max_lengths` at most `limit - 1` counts.
      limit: L, static length of the results in symbols, the end symbol counted.
      chunk: steps between two looks which sentences are done; a look is cheap, steps after the last end are not.
      start: the symbol fed first.
      coverage: of memory and the cache after a step, [N]: the sum over source positions of log min(attention, 1), for
        `cfg.coverage_penalty`.

    Returns:
      Hypotheses, best first.

    Raises:
      ValueError: shapes that do not fit, or no `coverage` or keys where the options need them.
    """
    B = request.max_lengths.shape[0]
    _check(cfg, memory, cache, request, coverage, limit, chunk)
    batch = begin(cfg, memory, cache, request, limit, chunk, start)
    if _alike_at_first(step, cfg, batch):
        batch = _first(step, cfg, batch, coverage)
    sizes = [B >> i for i in range(PHASES) if i == 0 or B >> i >= LEAST_ROWS]
    return _finish_all(partial(_run, step, cfg, chunk, coverage), cfg, batch, empty(B, cfg.beam_size, limit), sizes)


def _finish_all(
    run: Callable[[Batch, int], Batch], cfg: SearchConfig, batch: Batch, found: Hypotheses, sizes: list[int]
) -> Hypotheses:
    """Search the sentences of a batch of the first of `sizes`, going on in the smaller ones as sentences leave it.

    Args:
      run: advances a batch until at most so many sentences live.
      cfg: the options.
      batch: its sentences.
      found: of all sentences; those of the batch are put in their places.
      sizes: of batches, falling.
    """
    smaller = sizes[1:]
    batch = run(batch, smaller[0] if smaller else 0)
    trail = jax.tree.map(lambda x: x[: found.tokens.shape[-1]], batch.trail)
    new = merge_groups(trace(batch.beams.finished, trail), cfg.diverse_groups)
    found = jax.tree.map(lambda x, y: x.at[batch.numbers].set(y), found, new)
    if not smaller:
        return found

    def rest(batch: Batch) -> Hypotheses:
        return _finish_all(run, cfg, compact(batch, smaller[0]), found, smaller)

    return lax.cond(jnp.any(alive(batch)), rest, lambda _: found, batch)


def advance(step: Step, cfg: SearchConfig, batch: Batch, coverage: Coverage | None = None) -> tuple[Beams, Trail]:
    """One symbol further: score all continuations, finish some, let W live on, end the sentences that are done."""
    beams, request, W = batch.beams, batch.request, cfg.group_size
    rows = beams.last.shape
    logits, cache = step(batch.memory, beams.cache, beams.last.reshape(-1))
    totals, parents, tokens = _continuations(cfg, request, beams, logits)

    ends = tokens == EOS
    ended = jnp.where(ends, totals, -jnp.inf)[:, :W]
    covered = None
    if coverage is not None and cfg.coverage_penalty > 0:
        covered = pick(coverage(batch.memory, cache).reshape(rows), parents[:, :W])
    finished = finish(cfg, beams.finished, beams.step, ended, parents[:, :W], covered)
    first = jnp.argsort(ends, axis=-1, stable=True)[:, :W]  # a beam ends at most once: W of 2W always live on
    totals, parents, tokens = (pick(x, first) for x in (totals, parents, tokens))

    done = is_done(cfg, finished, beams.step, jnp.max(totals, axis=-1), request.max_lengths)
    totals = jnp.where(done[:, None], -jnp.inf, totals)
    history, progress = _remembered(beams, request, parents, tokens)
    after = Beams(beams.step + 1, tokens, totals, reorder(cache, parents, rows[1]), finished, history, progress)
    return after, Trail(tokens, parents, totals)


def _continuations(
    cfg: SearchConfig, request: Request, beams: Beams, logits: Array | rules.Fused
) -> tuple[Array, Array, Array]:
    """The candidates that compete, in the order in which they are served: totals, parents, tokens, [R, 2W] each."""
    W = cfg.group_size
    prices = rules.prices(cfg, beams.step, request.max_lengths)
    bound = request.prefixes.shape[1] or request.phrases.shape[1] or cfg.no_repeat_ngram
    plain = not (bound or cfg.sampling or cfg.diverse_groups > 1)
    if plain and not isinstance(logits, rules.Fused) and logits.ndim == 2 and is_large(logits.shape[-1]):
        found = logits.reshape(*beams.last.shape, -1).astype(jnp.float32)
        return top_of_logits(found, beams.totals, prices, 2 * W, temperature=cfg.temperature)
    log_probs = rules.log_probabilities(logits, cfg).reshape(*beams.last.shape, -1)
    scores = _ruled(cfg, request, beams, log_probs, prices)
    if cfg.sampling:
        assert request.keys is not None
        return sampling.draw(cfg, scores, beams.totals, request.keys, beams.step)
    if cfg.diverse_groups > 1:
        return diverse.continuations(cfg, scores, beams.totals)
    if request.phrases.shape[1]:
        return constraints.continuations(scores, beams.totals, beams.progress, request.phrases)
    return top(scores + beams.totals[:, :, None], 2 * W)


def _ruled(cfg: SearchConfig, request: Request, beams: Beams, log_probs: Array, prices: rules.Prices) -> Array:
    """What each continuation adds to the score, [R, W, V]: its log-probability under all rules."""
    V = log_probs.shape[-1]
    free = log_probs + prices.dense(V)[:, None, :]
    scores = free
    if cfg.no_repeat_ngram:
        again = rules.repeats(beams.history, beams.step, cfg.no_repeat_ngram, V)
        scores = jnp.where(again, -jnp.inf, scores)
    if request.phrases.shape[1]:
        room = request.max_lengths - beams.step
        scores = constraints.restrict(scores, free, beams.progress, request.phrases, room)
    if request.prefixes.shape[1]:
        scores = rules.force(scores, log_probs, cfg, request.prefixes, beams.step)
    return scores


def _remembered(beams: Beams, request: Request, parents: Array, tokens: Array) -> tuple[Array, Progress]:
    """History and progress of the hypotheses that live on."""
    history, progress = beams.history, beams.progress
    if history.shape[-1]:
        history = jnp.take_along_axis(history, parents[..., None], axis=1)
        history = lax.dynamic_update_slice_in_dim(history, tokens[..., None], beams.step, axis=2)
    if request.phrases.shape[1]:
        progress = constraints.follow(progress, request.phrases, parents, tokens)
    return history, progress


def _alike_at_first(step: Step, cfg: SearchConfig, batch: Batch) -> bool:
    """Whether one hypothesis of each sentence has all candidates of the first step, as in plain beam search."""
    if cfg.beam_size == 1 or cfg.sampling or cfg.diverse_groups > 1 or batch.request.phrases.shape[1]:
        return False
    beams = batch.beams
    logits, _ = jax.eval_shape(step, batch.memory, beams.cache, beams.last.reshape(-1))
    return 2 * cfg.beam_size <= int(jax.tree.leaves(logits)[0].shape[-1])


def _first(step: Step, cfg: SearchConfig, batch: Batch, coverage: Coverage | None) -> Batch:
    """The first step on one row of each sentence: until it is done its hypotheses are alike."""
    beams, W = batch.beams, cfg.beam_size
    one = replace(
        beams,
        last=beams.last[:, :1],
        totals=beams.totals[:, :1],
        cache=jax.tree.map(lambda x: x[::W], beams.cache),
        history=beams.history[:, :1],
    )
    after, new = advance(step, cfg, replace(batch, beams=one), coverage)
    trail = jax.tree.map(lambda x, y: x.at[0].set(y), batch.trail, new)
    return replace(batch, beams=after, trail=trail)


def _run(step: Step, cfg: SearchConfig, chunk: int, coverage: Coverage | None, batch: Batch, smaller: int) -> Batch:
    """Advance until at most `smaller` sentences live."""

    def live(batch: Batch) -> Array:
        return jnp.sum(alive(batch), dtype=jnp.int32) > smaller

    def several(batch: Batch) -> Batch:
        def one(beams: Beams, _: None) -> tuple[Beams, Trail]:
            return advance(step, cfg, replace(batch, beams=beams), coverage)

        beams, new = lax.scan(one, batch.beams, length=chunk)
        at = batch.beams.step
        trail = jax.tree.map(lambda x, y: lax.dynamic_update_slice_in_dim(x, y, at, 0), batch.trail, new)
        return replace(batch, beams=beams, trail=trail)

    return lax.while_loop(live, several, batch)


def _check(
    cfg: SearchConfig,
    memory: Memory,
    cache: Cache,
    request: Request,
    coverage: Coverage | None,
    limit: int,
    chunk: int,
) -> None:
    if limit < 1 or chunk < 1:
        raise ValueError(f"limit is {limit} and chunk is {chunk}: both are 1 or more")
    if cfg.coverage_penalty > 0 and coverage is None:
        raise ValueError(f"coverage_penalty is {cfg.coverage_penalty}, but no coverage was given")
    if cfg.sampling and request.keys is None:
        raise ValueError("sampling needs a random key for each sentence")
    if request.phrases.shape[1] and (cfg.sampling or cfg.diverse_groups > 1):
        raise ValueError("constraints go with plain beam search only: without sampling and diverse_groups")
    B = request.max_lengths.shape[0]
    for name, tree, rows, what in (("memory", memory, B, "B"), ("cache", cache, B * cfg.beam_size, "B * W")):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if leaf.ndim == 0 or leaf.shape[0] != rows:
                place = name + jax.tree_util.keystr(path)
                raise ValueError(f"{place} has shape {leaf.shape}: axis 0 must hold {what} = {rows} rows")
