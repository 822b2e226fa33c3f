"""Beam search over any network: it knows a step function and a cache, and keeps hypotheses as back-pointers.

The procedure is fairseq's (`SequenceGenerator`): of the 2H best continuations of a group's H live hypotheses, ends
ranked among the first H are finished, ends ranked lower are dropped, and the first H others live on, so that the beam
never shrinks. It differs from fairseq in the stopping rule (`SearchConfig.stop`) and in that a sentence's result
depends on nothing but the sentence. How the 2H continuations are chosen is a function that the search is given, a
`Strategy`: the best ones, samples, diverse groups, phrases that must occur. All else is shared.

B sentences in a batch, a beam of W for each, in G groups of H = W // G hypotheses (G = 1 but in diverse search); R =
B * G rows of the search. The network sees N = R * H = B * W rows, those of a sentence side by side; at the first symbol
of a plain search B rows, since hypotheses are equal there.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Integral

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from convs2s_jax.core.tokens import EOS
from convs2s_jax.search.finished import finish, is_done
from convs2s_jax.search.hypotheses import Hypotheses, Trail, empty, merge_groups, pick, trace
from convs2s_jax.search.numbers import Numbers
from convs2s_jax.search.request import Request, check_request
from convs2s_jax.search.rules import SPECIAL, Fused
from convs2s_jax.search.state import Beams, SearchBatch, StepCache, StepMemory, alive, begin, compact, reorder
from convs2s_jax.search.strategies.base import Strategy, View
from convs2s_jax.search.structure import Structure

StepFunction = Callable[[StepMemory, StepCache, Array], tuple[Array | Fused, StepCache]]
Coverage = Callable[[StepMemory, StepCache], Array]

PHASES = 2
"""Sizes of a batch, each half of the one before; the step is compiled once for each (docs/decisions/0006)."""
LEAST_ROWS = 8
"""Batches do not get smaller than this."""


@dataclass(frozen=True)
class Search:
    """What stays the same from step to step.

    Attributes:
      step: of the network.
      strategy: chooses the candidates.
      structure: the static options.
      numbers: the traced options.
      coverage: what the coverage penalty reads, where there is one.
      chunk: steps between two checks for finished sentences.
    """

    step: StepFunction
    strategy: Strategy
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

    When half of the sentences are done, the others go on in a smaller batch, so that a few long sentences do not keep
    all rows busy. The sizes are static: everything is one program.

    The scores are functions of `numbers` that can be mapped (`jax.vmap`) and differentiated: by `jax.jvp` always, by
    `jax.grad` where `chunk` is at least `limit`, because then a loop of fixed length takes the place of one that stops
    when all sentences are done. The derivative is that of the hypotheses found, as if the choice were constant.

    Args:
      step: one step of the network; pure. It gets memory, cache and the last symbol [N] of every live hypothesis and
        returns logits or log-probabilities, [N, V] or [M, N, V] of the M members of an ensemble, or either beside
        those of a language model (`rules.Fused`), and the new cache; softmax, temperature and penalties are applied
        here. N changes from call to call: B at the first symbol of most searches, where hypotheses are equal, then
        B * beam_size, and less once sentences are done. So what belongs to a row or a sentence comes from `memory` and
        `cache`, which are cut to the same rows; an array that the step closes over belongs to all rows.
      strategy: how candidates are chosen (`strategies`); `strategies.table.strategy_of` has a user's.
      numbers: penalties and temperature, traced; `numbers_of` has a user's.
      memory: what `step` reads: the B sentences on axis 0 of every leaf.
      cache: the state before the start symbol, rows [N = B * beam_size] on axis 0 of every leaf.
      request: what is asked of each sentence; of `max_lengths` at most `limit - 1` counts.
      structure: the static options; `structure_of` has a user's.
      limit: L, static length of the results in symbols, the end symbol counted.
      chunk: steps between two checks for finished sentences. A check is cheap; steps after the last end are wasted.
      start: the symbol fed first.
      coverage: of memory and the cache after a step, [N]: the sum over source positions of log min(attention, 1), for
        the coverage penalty.

    Returns:
      Hypotheses, best first.

    Raises:
      ValueError: shapes that do not fit, no sentence, prefixes or phrases outside the vocabulary (seen where they are
        not traced), or no `coverage` or keys where the options need them.
    """
    B = request.max_lengths.shape[0]
    structure = replace(structure, stop=strategy.stop or structure.stop)
    cache = jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, cache)  # float64 to JAX's type
    V = _check(step, strategy, structure, memory, cache, request, coverage, limit, chunk)
    fixed = Search(step, strategy, structure, numbers, coverage if structure.coverage else None, chunk)
    batch = begin(strategy, structure, memory, cache, request, limit, chunk, start)
    W = structure.beam_size
    if strategy.first_step_on_one_row and structure.groups == 1 and 1 < W <= V // 2:
        batch = _first(fixed, batch)
    sizes = [B >> i for i in range(PHASES) if i == 0 or (B >> i >= LEAST_ROWS and chunk < limit)]
    return _finish_all(fixed, batch, empty(B, W, limit), sizes)


def _finish_all(search: Search, batch: SearchBatch, found: Hypotheses, sizes: list[int]) -> Hypotheses:
    """Search a batch of the first of `sizes`; once enough sentences are done, go on in a batch of the next size.

    Args:
      search: what stays the same.
      batch: its sentences.
      found: of all sentences; those of the batch are put in their places.
      sizes: of batches, falling.
    """
    smaller = sizes[1:]
    batch = _run(search, batch, found.tokens.shape[-1], smaller[0] if smaller else 0)
    trail = jax.tree.map(lambda x: x[: found.tokens.shape[-1]], batch.trail)
    new = merge_groups(trace(batch.beams.finished, trail), search.structure.groups)
    found = jax.tree.map(lambda x, y: x.at[batch.places].set(y), found, new)
    if not smaller:
        return found

    def rest(batch: SearchBatch) -> Hypotheses:
        return _finish_all(search, compact(batch, smaller[0]), found, smaller)

    return lax.cond(jnp.any(alive(batch)), rest, lambda _: found, batch)


def _run(search: Search, batch: SearchBatch, limit: int, smaller: int) -> SearchBatch:
    """Advance until at most `smaller` sentences live."""

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
        return several(batch)  # nothing lives after that; without a while_loop there is a gradient
    return lax.while_loop(live, several, batch)


def advance(search: Search, batch: SearchBatch) -> tuple[Beams, Trail]:
    """One symbol further: score all continuations, finish some, let H live on, end the sentences that are done."""
    structure, numbers, strategy = search.structure, search.numbers, search.strategy
    beams, request, H = batch.beams, batch.request, search.structure.group_size
    rows = beams.last.shape
    logits, cache = search.step(batch.memory, beams.cache, beams.last.reshape(-1))
    _check_result(beams.last.size, beams.cache, logits, cache)
    view = View(structure, numbers, request, beams.step, beams.totals, beams.history, beams.state, logits)
    totals, parents, tokens = strategy.choose(view)

    ends = tokens == EOS
    ended = jnp.where(ends, totals, -jnp.inf)[:, :H]
    covered = None
    if search.coverage is not None:
        covered = pick(search.coverage(batch.memory, cache).reshape(rows), parents[:, :H])
    finished = finish(structure, numbers, beams.finished, beams.step, ended, parents[:, :H], covered)
    first = jnp.argsort(ends, axis=-1, stable=True)[:, :H]  # a beam ends at most once: H of 2H always live on
    totals, parents, tokens = (pick(x, first) for x in (totals, parents, tokens))

    done = is_done(structure, numbers, finished, beams.step, jnp.max(totals, axis=-1), request.max_lengths)
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
    """The tokens of the hypotheses that live on."""
    if history.shape[-1] == 0:
        return history
    history = jnp.take_along_axis(history, parents[..., None], axis=1)
    return lax.dynamic_update_slice_in_dim(history, tokens[..., None], step, axis=2)


def _first(search: Search, batch: SearchBatch) -> SearchBatch:
    """The first step on one row of each sentence: before it, the hypotheses of a sentence are equal."""
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
    """Refuse shapes and options that do not fit together. Returns V, the size of the vocabulary."""
    for name, value in (("limit", limit), ("chunk", chunk)):
        if not isinstance(value, Integral):
            raise TypeError(f"{name} is {value}: expected a whole number of Python, which is static under `jit`")
    if limit < 1 or chunk < 1:
        raise ValueError(f"limit is {limit} and chunk is {chunk}: both are 1 or more")
    if structure.coverage and coverage is None:
        raise ValueError("the structure has a coverage penalty, but no coverage was given")
    strategy.check(request)
    B = request.max_lengths.shape[0]
    N = B * structure.beam_size
    if B == 0:
        raise ValueError("max_lengths has no entry: a search needs one sentence or more")
    for name, tree, rows, what in (("memory", memory, B, "B"), ("cache", cache, N, "B * W")):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if np.shape(leaf)[:1] != (rows,):
                place = name + jax.tree_util.keystr(path)
                raise ValueError(f"{place} has shape {np.shape(leaf)}: axis 0 must hold {what} = {rows} rows")
    result = jax.eval_shape(step, memory, cache, jax.ShapeDtypeStruct((N,), jnp.int32))
    if not isinstance(result, tuple | list) or len(result) != 2:
        what = f"{len(result)} values" if isinstance(result, tuple | list) else f"a {type(result).__name__}"
        raise ValueError(f"the step returns {what}: a step has to return two, (logits [N, V], cache)")
    logits, after = result
    V = _check_result(N, cache, logits, after)
    check_request(request, V)
    return V


def _check_result(rows: int, cache: StepCache, logits: Array | Fused, after: StepCache) -> int:
    """Refuse what a step returns of `rows` last symbols and `cache` where shapes do not fit. Returns V."""
    parts = (
        {"logits": logits} if not isinstance(logits, Fused) else {"logits.model": logits.model, "logits.lm": logits.lm}
    )
    V = jax.tree.leaves(logits)[0].shape[-1:]
    for name, part in parts.items():
        ranks = (2,) if name == "logits.lm" else (2, 3)
        if part.ndim not in ranks or part.shape[-2:] != (rows, *V) or V[0] < SPECIAL:
            raise ValueError(
                f"{name} of the step has shape {part.shape}: it must be [N, V], or [M, N, V] of an ensemble, with the "
                f"same V >= {SPECIAL} symbols and N = {rows} rows, as many as there are last tokens in this call; a "
                "step takes what belongs to a row from its cache or memory"
            )
    old, new = (jax.tree_util.tree_leaves_with_path(x) for x in (cache, after))
    if [path for path, _ in old] != [path for path, _ in new]:
        raise ValueError("the step returns a cache of another structure than it takes")
    for (path, x), (_, y) in zip(old, new, strict=True):
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            raise ValueError(
                f"cache{jax.tree_util.keystr(path)} goes into the step as {x.dtype}{list(x.shape)} and comes back as "
                f"{y.dtype}{list(y.shape)}: shape and type must stay"
            )
    return int(V[0])
