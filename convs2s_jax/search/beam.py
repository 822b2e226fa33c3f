"""Beam search for any network, given a step function and a cache. Hypotheses are stored as back-pointers.

The procedure is that of fairseq's `SequenceGenerator`. Among the 2H best continuations of a group's H live hypotheses,
those that end are finished if they rank among the first H, and dropped otherwise. The first H others stay alive, so
that the beam never shrinks. It differs from fairseq in the stopping rule (`SearchConfig.stop`), and a sentence's result
depends on nothing but the sentence. A `Strategy` chooses the 2H continuations: the best ones, samples, diverse groups,
or phrases that must occur. Everything else is shared.

A batch has B sentences with a beam of W each, in G groups of H = W // G hypotheses (G = 1 except in diverse search);
the search has R = B * G rows. The network sees N = R * H = B * W rows, with those of a sentence adjacent. At the first
symbol of a plain search it sees B rows, because all hypotheses are equal.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from convs2s_jax.core.tokens import EOS
from convs2s_jax.search import callbacks
from convs2s_jax.search.callbacks import Coverage, StepFunction
from convs2s_jax.search.finished import STOPPING_RULES, StoppingRule, finish
from convs2s_jax.search.hypotheses import Hypotheses, Trail, empty, merge_groups, pick, trace
from convs2s_jax.search.numbers import Numbers
from convs2s_jax.search.request import Request
from convs2s_jax.search.state import Beams, SearchBatch, StepCache, StepMemory, alive, begin, compact, reorder
from convs2s_jax.search.strategies.base import Strategy, View
from convs2s_jax.search.structure import Structure

PHASES = 2
"""Number of batch sizes, each half of the previous one; the step is compiled once for each (docs/decisions/0006)."""
LEAST_ROWS = 8
"""Minimum batch size."""


@dataclass(frozen=True)
class Search:
    """The constants of a search, the same at every step.

    Attributes:
      step: the step function of the network.
      strategy: chooses the candidates.
      stop: decides when a sentence is done.
      structure: the static options.
      numbers: the traced options.
      coverage: the coverage that the penalty is computed from; None without a coverage penalty.
      chunk: number of steps between two checks for finished sentences.
    """

    step: StepFunction
    strategy: Strategy
    stop: StoppingRule
    structure: Structure
    numbers: Numbers
    coverage: Coverage | None
    chunk: int


def search(
    step: StepFunction,
    strategy: Strategy,
    numbers: Numbers,
    memory: StepMemory,
    cache: StepCache,
    request: Request,
    *,
    structure: Structure,
    limit: int,
    chunk: int = 1,
    start: int = EOS,
    coverage: Coverage | None = None,
) -> Hypotheses:
    """Find the best hypotheses of B sentences, or draw samples.

    When half of the sentences are done, the others continue in a smaller batch, so that a few long sentences do not
    keep all rows busy. The sizes are static, and the whole search is one program.

    The scores are functions of `numbers` and work with `jax.vmap` and `jax.jvp`. `jax.grad` requires a `chunk` of at
    least `limit`, which replaces the loop that stops when all sentences are done with one of fixed length. The
    derivative is that of the hypotheses found, as if the choice were constant.

    Args:
      step, memory, cache, request, limit, chunk, start, coverage: as in `configured.beam_search`.
      strategy: how candidates are chosen (`strategies`); see `strategies.table.strategy_of`.
      numbers: penalties and temperature, traced; see `numbers_of`.
      structure: the static options; see `structure_of`.

    Returns:
      Hypotheses, best first.

    Raises:
      ValueError: shapes do not fit; there is no sentence; prefixes or phrases are outside the vocabulary, or do not fit
        into a result (checked if they are not traced); or `coverage` or keys are missing.
    """
    B = request.max_lengths.shape[0]
    cache = jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, cache)  # canonical dtypes
    V = callbacks.check_call(step, strategy, structure, memory, cache, request, coverage, limit, chunk)
    stop = strategy.stop or STOPPING_RULES[structure.stop]
    fixed = Search(step, strategy, stop, structure, numbers, coverage if structure.coverage else None, chunk)
    batch = begin(strategy, structure, memory, cache, request, limit, chunk, start)
    W = structure.beam_size
    if strategy.first_step_on_one_row and structure.groups == 1 and 1 < W <= V // 2:
        batch = _first(fixed, batch)
    sizes = [B >> i for i in range(PHASES) if i == 0 or (B >> i >= LEAST_ROWS and chunk < limit)]
    return _finish_all(fixed, batch, empty(B, W, limit), sizes)


def _finish_all(search: Search, batch: SearchBatch, found: Hypotheses, sizes: list[int]) -> Hypotheses:
    """Search a batch of the first of `sizes`; once enough sentences are done, continue in a batch of the next size.

    Args:
      search: the constants of the search.
      batch: the sentences to search.
      found: hypotheses of all sentences, of which those of the batch are updated.
      sizes: batch sizes, in descending order.
    """
    smaller = sizes[1:]
    batch = _run(search, batch, found.tokens.shape[-1], smaller[0] if smaller else 0)
    trail = jax.tree.map(lambda x: x[: found.tokens.shape[-1]], batch.trail)
    new = merge_groups(trace(batch.beams.finished, trail), search.structure.groups)
    found = jax.tree.map(lambda x, y: x.at[batch.indices].set(y), found, new)
    if not smaller:
        return found

    def rest(batch: SearchBatch) -> Hypotheses:
        return _finish_all(search, compact(batch, smaller[0]), found, smaller)

    return lax.cond(jnp.any(alive(batch)), rest, lambda _: found, batch)


def _run(search: Search, batch: SearchBatch, limit: int, smaller: int) -> SearchBatch:
    """Advance until at most `smaller` sentences are alive."""

    def live(batch: SearchBatch) -> Array:
        return jnp.sum(alive(batch), dtype=jnp.int32) > smaller

    def several(batch: SearchBatch) -> SearchBatch:
        def one(beams: Beams, _: None) -> tuple[Beams, Trail]:
            return advance(search, replace(batch, beams=beams))

        beams, new = lax.scan(one, batch.beams, length=search.chunk)
        at = batch.beams.step
        trail = jax.tree.map(lambda x, y: lax.dynamic_update_slice_in_dim(x, y, at, 0), batch.trail, new)
        return replace(batch, beams=beams, trail=trail)

    if search.chunk >= limit:
        return several(batch)  # nothing is alive after that, and without a while_loop there is a gradient
    return lax.while_loop(live, several, batch)


def advance(search: Search, batch: SearchBatch) -> tuple[Beams, Trail]:
    """Advance by one symbol: score all continuations, finish some, keep H alive, and stop the sentences that are done.

    Returns:
      The state after the step, and what the step chose.
    """
    structure, numbers, strategy = search.structure, search.numbers, search.strategy
    beams, request, H = batch.beams, batch.request, search.structure.group_size
    rows = beams.last.shape
    logits, cache = search.step(batch.memory, beams.cache, beams.last.reshape(-1))
    callbacks.check_result(beams.last.size, beams.cache, logits, cache)
    view = View(structure, numbers, request, beams.step, beams.totals, beams.history, beams.state, logits)
    totals, parents, tokens = callbacks.check_candidates(strategy.choose(view), (rows[0], 2 * H), beams.totals.dtype)

    ends = tokens == EOS
    ended = jnp.where(ends, totals, -jnp.inf)[:, :H]
    covered = None
    if search.coverage is not None:
        coverage = callbacks.check_coverage(search.coverage(batch.memory, cache), beams.last.size, beams.totals.dtype)
        covered = pick(coverage.reshape(rows), parents[:, :H])
    finished = finish(search.stop, structure, numbers, beams.finished, beams.step, ended, parents[:, :H], covered)
    first = jnp.argsort(ends, axis=-1, stable=True)[:, :H]  # a hypothesis ends at most once, so H of 2H stay alive
    totals, parents, tokens = (pick(x, first) for x in (totals, parents, tokens))

    best = jnp.max(totals, axis=-1)
    early = search.stop.is_done(structure, numbers, finished, beams.step, best, request.max_lengths)
    early = callbacks.check_done(early, best.shape)
    done = (beams.step >= request.max_lengths) | early
    after = Beams(
        step=beams.step + 1,
        last=tokens,
        totals=jnp.where(done[:, None], -jnp.inf, totals),
        cache=reorder(cache, parents, rows[1]),
        finished=finished,
        history=_longer(beams.history, beams.step, parents, tokens),
        state=strategy.follow(beams.state, request, parents, tokens),
    )
    return after, Trail(tokens, parents, after.totals)


def _longer(history: Array, step: Array, parents: Array, tokens: Array) -> Array:
    """Return the tokens of the hypotheses that stay alive."""
    if history.shape[-1] == 0:
        return history
    history = jnp.take_along_axis(history, parents[..., None], axis=1)
    return lax.dynamic_update_slice_in_dim(history, tokens[..., None], step, axis=2)


def _first(search: Search, batch: SearchBatch) -> SearchBatch:
    """Take the first step with one row per sentence, because all its hypotheses are equal before that step."""
    beams, W = batch.beams, search.structure.beam_size
    one = replace(
        beams,
        last=beams.last[:, :1],
        totals=beams.totals[:, :1],
        cache=jax.tree.map(lambda x: x[::W], beams.cache),
        history=beams.history[:, :1],
        state=jax.tree.map(lambda x: x[:, :1], beams.state),
    )
    after, new = advance(search, replace(batch, beams=one))
    trail = jax.tree.map(lambda x, y: x.at[0].set(y), batch.trail, new)
    return replace(batch, beams=after, trail=trail)
