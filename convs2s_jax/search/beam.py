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

from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from convs2s_jax.core.tokens import EOS
from convs2s_jax.search.finished import STOPPING_RULES, StoppingRule, finish
from convs2s_jax.search.hypotheses import Hypotheses, Trail, empty, merge_groups, pick, trace
from convs2s_jax.search.numbers import Numbers
from convs2s_jax.search.request import Request, check_request
from convs2s_jax.search.rules import SPECIAL, Fused
from convs2s_jax.search.state import Beams, SearchBatch, StepCache, StepMemory, alive, begin, compact, reorder
from convs2s_jax.search.strategies.base import Candidates, Strategy, View
from convs2s_jax.search.structure import Structure

StepFunction = Callable[[StepMemory, StepCache, Array], tuple[Array | Fused, StepCache]]
Coverage = Callable[[StepMemory, StepCache], Array]

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
      ValueError: shapes do not fit, there is no sentence, prefixes or phrases are outside the vocabulary, a prefix is
        longer than a result (both are only checked if they are not traced), or `coverage` or keys are missing.
    """
    B = request.max_lengths.shape[0]
    cache = jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, cache)  # canonical dtypes
    V = _check(step, strategy, structure, memory, cache, request, coverage, limit, chunk)
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
    _check_result(beams.last.size, beams.cache, logits, cache)
    view = View(structure, numbers, request, beams.step, beams.totals, beams.history, beams.state, logits)
    totals, parents, tokens = _checked(strategy.choose(view), (rows[0], 2 * H), beams.totals.dtype)

    ends = tokens == EOS
    ended = jnp.where(ends, totals, -jnp.inf)[:, :H]
    covered = None
    if search.coverage is not None:
        coverage = search.coverage(batch.memory, cache)
        if (coverage.shape, coverage.dtype) != ((beams.last.size,), beams.totals.dtype):
            raise ValueError(
                f"coverage returns {coverage.dtype}{list(coverage.shape)}: expected {beams.totals.dtype}"
                f"[{beams.last.size}], one number for each row"
            )
        covered = pick(coverage.reshape(rows), parents[:, :H])
    finished = finish(search.stop, structure, numbers, beams.finished, beams.step, ended, parents[:, :H], covered)
    first = jnp.argsort(ends, axis=-1, stable=True)[:, :H]  # a hypothesis ends at most once, so H of 2H stay alive
    totals, parents, tokens = (pick(x, first) for x in (totals, parents, tokens))

    best = jnp.max(totals, axis=-1)
    early = jnp.asarray(search.stop.is_done(structure, numbers, finished, beams.step, best, request.max_lengths))
    if (early.shape, early.dtype) != (best.shape, bool):
        raise ValueError(
            f"is_done of the stopping rule returns {early.dtype}{list(early.shape)}: expected "
            f"bool{list(best.shape)}, [R]"
        )
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


def _checked(candidates: Candidates, shape: tuple[int, int], dtype: DTypeLike) -> Candidates:
    """Return the candidates of a strategy, of which H stay alive; reject arrays that do not fit the beam."""
    if not isinstance(candidates, tuple) or len(candidates) != len(Candidates._fields):
        raise TypeError("`choose` of the strategy has to return Candidates(totals, parents, tokens)")
    for name, x, kind in zip(Candidates._fields, candidates, (dtype, jnp.int32, jnp.int32), strict=True):
        if (x.shape, x.dtype) != (shape, kind):
            raise ValueError(
                f"{name} of the strategy's candidates are {x.dtype}{list(x.shape)}: expected "
                f"{jnp.dtype(kind)}{list(shape)}, [R, 2H]"
            )
    return Candidates(*candidates)


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


def _check(
    step: StepFunction,
    strategy: Strategy,
    structure: Structure,
    memory: StepMemory,
    cache: StepCache,
    request: Request,
    coverage: Coverage | None,
    limit: int,
    chunk: int,
) -> int:
    """Reject shapes and options that do not fit together. Return V, the size of the vocabulary."""
    for name, value in (("limit", limit), ("chunk", chunk)):
        if not isinstance(value, Integral):
            raise TypeError(f"{name} is {value}: expected a Python integer, which is static under `jit`")
    if limit < 1 or chunk < 1:
        raise ValueError(f"limit is {limit} and chunk is {chunk}: use 1 or more for both")
    if structure.coverage and coverage is None:
        raise ValueError("coverage is None, but the search has a coverage penalty: pass coverage")
    if not isinstance(strategy.stop, StoppingRule | None):
        raise TypeError(f"stop is {strategy.stop!r}: expected a StoppingRule, such as StoppingRule(is_done)")
    strategy.check(request)
    B = request.max_lengths.shape[0]
    N = B * structure.beam_size
    if B == 0:
        raise ValueError("max_lengths is empty: a search needs at least one sentence")
    for name, tree, rows, what in (("memory", memory, B, "B"), ("cache", cache, N, "B * W")):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if np.shape(leaf)[:1] != (rows,):
                place = name + jax.tree_util.keystr(path)
                raise ValueError(f"{place} has shape {np.shape(leaf)}: axis 0 must have {what} = {rows} rows")
    result = jax.eval_shape(step, memory, cache, jax.ShapeDtypeStruct((N,), jnp.int32))
    if not isinstance(result, tuple | list) or len(result) != 2:
        what = f"{len(result)} values" if isinstance(result, tuple | list) else f"a {type(result).__name__}"
        raise ValueError(f"the step returns {what}: expected two values, (logits [N, V], cache)")
    logits, after = result
    if structure.language_model and not isinstance(logits, Fused):
        raise ValueError("lm_weight is above 0, but the step returns no logits of a language model: return Fused(...)")
    V = _check_result(N, cache, logits, after)
    check_request(request, V, limit)
    return V


def _check_result(rows: int, cache: StepCache, logits: Array | Fused, after: StepCache) -> int:
    """Reject results of a step whose shapes do not fit its inputs, `rows` last symbols and `cache`. Return V."""
    parts: dict[str, Array] = (
        {"logits.model": logits.model, "logits.lm": logits.lm} if isinstance(logits, Fused) else {"logits": logits}
    )
    V: tuple[int, ...] = ()
    for name, part in parts.items():
        if not hasattr(part, "shape"):
            raise TypeError(
                f"{name} of the step is a {type(part).__name__}: expected an array [N, V], or [M, N, V] for an "
                "ensemble, as jnp.stack makes of a list"
            )
        V = V or part.shape[-1:]
        ranks = (2,) if name == "logits.lm" else (2, 3)
        if part.ndim not in ranks or part.shape[-2:] != (rows, *V) or V[0] < SPECIAL:
            raise ValueError(
                f"{name} of the step has shape {part.shape}: expected [N, V], or [M, N, V] for an ensemble, with the "
                f"same V >= {SPECIAL} symbols and N = {rows} rows, one for each last token of this call; take per-row "
                "inputs of the step from its cache or memory"
            )
    old, new = (jax.tree_util.tree_leaves_with_path(x) for x in (cache, after))
    if [path for path, _ in old] != [path for path, _ in new]:
        raise ValueError("the step returns a cache whose structure differs from that of its input cache")
    for (path, x), (_, y) in zip(old, new, strict=True):
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            raise ValueError(
                f"cache{jax.tree_util.keystr(path)} enters the step as {x.dtype}{list(x.shape)} and is returned as "
                f"{y.dtype}{list(y.shape)}: shape and dtype must not change"
            )
    return int(V[0])
