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
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.typing import DTypeLike

from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.nn import struct
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
from convs2s_jax.search.options import SearchOptions, checked_options
from convs2s_jax.search.request import Request, check_request
from convs2s_jax.search.rules import SPECIAL, Fused
from convs2s_jax.search.strategies import PLAIN, Candidates, SearchStep, State, Strategy
from convs2s_jax.search.variations import CONSTRAINED, DIVERSE, SAMPLED, merge_groups

StepMemory = Any
"""A pytree whose leaves have the B sentences on axis 0: the constant inputs of a step."""
StepCache = Any
"""A pytree whose leaves have the N rows on axis 0."""
StepFunction = Callable[[StepMemory, StepCache, Array], tuple[Array | Fused, StepCache]]
Coverage = Callable[[StepMemory, StepCache], Array]
LEAST_ROWS = 8
"""Minimum size of the smaller batch that the second half of the sentences continues in."""


@dataclass(frozen=True)
class Search:
    """The constants of a search, the same at every step; the fields are arguments of `beam_search`."""

    step: StepFunction
    strategy: Strategy
    stop: StoppingRule
    options: SearchOptions
    coverage: Coverage | None
    chunk: int
    limit: int


@struct.dataclass
class Beams:
    """The state between two steps.

    Attributes:
      step: [], number of tokens that live hypotheses have.
      last: [R, H], the last symbol of each hypothesis.
      totals: [R, H], cumulative scores; -inf for hypotheses that may not be continued.
      cache: [N, ...], the network's cache.
      finished: [R, H], the best finished hypotheses.
      history: [R, H, L], tokens so far; L = 0 if no rule needs them.
      state: [R, H, ...], the strategy's state.
    """

    step: Array
    last: Array
    totals: Array
    cache: StepCache
    finished: Finished
    history: Array
    state: State


@struct.dataclass
class SearchBatch:
    """Sentences that are searched together.

    Attributes:
      indices: [B], their indices among all sentences.
      memory: [B, ...], constant inputs of the network's step.
      request: [R, ...], their requests.
      beams: the state of their search.
      chosen: [steps, R, H], the choices of each step.
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
    stop: StoppingRule | None = None,
    chunk: int = 1,
    start: int = EOS,
    coverage: Coverage | None = None,
) -> Hypotheses:
    """Find the best hypotheses of B sentences with any step function, or draw samples.

    When half of the sentences are done, the others continue in a smaller batch, so that a few long sentences do not
    keep all rows busy. The sizes are static, and the whole search is one program.

    The scores are functions of the numbers in `SearchOptions` and work with `jax.vmap` and `jax.jvp`. `jax.grad`
    requires a `chunk` of at least `limit`, which replaces the loop that stops when all sentences are done with one of
    fixed length. The derivative is that of the hypotheses found, as if the choice were constant.

    Args:
      step: one step of the network, a pure function (memory, cache, last tokens [N]) -> (logits, new cache). Logits may
        be log-probabilities. They are [N, V], [M, N, V] for the M members of an ensemble, or either of these with those
        of a language model (`rules.Fused`). The hypotheses of a sentence are adjacent. N changes from call to call. It
        is usually B at the first symbol, then B * W with W = `search.beam_size`, and less once sentences are done.
        Therefore, take per-row and per-sentence inputs from `memory` and `cache`, which are sliced to the same rows.
        Arrays that the step closes over are shared by all rows.
      search: the options; a `SearchConfig` is static under `jit`. For numbers that are traced, mapped or
        differentiated, pass `search_options(config).replace(length_penalty=...)`.
      memory: constant inputs of `step`, with the B sentences on axis 0 of every leaf.
      cache: the state before the start symbol, with N = B * W rows on axis 0 of every leaf.
      request: length bounds, prefixes, phrases and keys of each sentence; `max_lengths` above `limit - 1` are clipped.
      limit: L, static length of the results in symbols, including the end symbol.
      strategy: how candidates are chosen, instead of the strategy that `search` and the phrases of the request select.
      stop: when a sentence is done, instead of the rule that the strategy or `search` selects.
      chunk: number of steps between two checks for finished sentences; `jax.grad` needs at least `limit`. A check is
        cheap; steps after the last sentence has finished are wasted.
      start: the symbol fed first.
      coverage: (memory, cache after a step) -> [N], the sum over source positions of log min(attention, 1), for the
        coverage penalty.

    Returns:
      Hypotheses, best first.

    Raises:
      ValueError: shapes do not fit; there is no sentence; prefixes or phrases are outside the vocabulary, or do not fit
        into a result; a number of `search` is out of bounds; `coverage` or keys are missing, or `search` does not use
        the keys. Traced values are not checked.
      TypeError: `search`, `request`, `strategy` or `stop` has another type.
    """
    options = checked_options(search)
    stop = stop or (strategy.stop if isinstance(strategy, Strategy) else None)
    for name, value, kind, example in (
        ("strategy", strategy, Strategy | None, "a Strategy, such as Strategy(choose)"),
        ("stop", stop, StoppingRule | None, "a StoppingRule, such as StoppingRule(is_done)"),
        ("request", request, Request, "what `request` returns"),
    ):
        if not isinstance(value, kind):
            raise TypeError(f"{name} is a {type(value).__name__}: expected {example}")
    if request.keys is not None and strategy is None and not options.sampling:
        raise ValueError("the request has keys, but this search draws no samples: leave them out, or set sampling=True")
    strategy = strategy or strategy_of(options, phrases=request.phrases.shape[1] > 0)
    strategy.check(request)
    cache = jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, cache)  # canonical dtypes
    rule = stop or strategy.stop or STOPPING_RULES[options.stop]
    fixed = Search(step, strategy, rule, options, coverage, chunk, limit)
    V = _vocabulary_of(fixed, memory, cache, request.max_lengths.shape[0])
    check_request(request, V, limit)
    B, W = request.max_lengths.shape[0], options.beam_size
    batch = _begin(fixed, memory, cache, request, start)
    if strategy.first_step_on_one_row and options.groups == 1 and 1 < W <= V // 2:
        batch = _first(fixed, batch)
    nothing = Hypotheses(
        tokens=jnp.full((B, W, limit), PAD, jnp.int32),
        lengths=jnp.zeros((B, W), jnp.int32),
        scores=jnp.full((B, W), -jnp.inf, jnp.float32),
        token_scores=jnp.zeros((B, W, limit), jnp.float32),
    )
    half = B // 2 if B // 2 >= LEAST_ROWS and chunk < limit else 0
    batch = _run(fixed, batch, half)
    found = _collected(fixed, batch, nothing)
    if not half:
        return found

    def rest(batch: SearchBatch) -> Hypotheses:
        return _collected(fixed, _run(fixed, _compact(batch, half), 0), found)

    return lax.cond(jnp.any(_alive(batch)), rest, lambda _: found, batch)


def strategy_of(options: SearchOptions, *, phrases: bool = False) -> Strategy:
    """Return the strategy that the options select. `phrases` is true if there are phrases that must occur."""
    if options.sampling:
        return SAMPLED
    if options.groups > 1:
        return DIVERSE
    return CONSTRAINED if phrases else PLAIN


def _begin(search: Search, memory: StepMemory, cache: StepCache, request: Request, start: int) -> SearchBatch:
    """Return the state before the first step. If hypotheses start equal, only the first of each group is continued."""
    options, strategy = search.options, search.strategy
    B, H, G = request.max_lengths.shape[0], options.group_size, options.groups
    request = jax.tree.map(lambda x: jnp.repeat(x, G, axis=0), request)
    longest = jnp.clip(request.max_lengths, 0, search.limit - 1).astype(jnp.int32)
    request = replace(request, max_lengths=longest)
    R = B * G
    steps = search.limit + search.chunk  # whole chunks, whatever step they begin at
    dead, zero = jnp.full((R, H), -jnp.inf, jnp.float32), jnp.zeros((R, H), jnp.int32)
    beams = Beams(
        step=jnp.int32(0),
        last=jnp.full((R, H), start, jnp.int32),
        totals=dead.at[:, : 1 if strategy.starts_as_one else H].set(0.0),
        cache=cache,
        finished=Finished(dead, dead, zero, zero),
        history=jnp.zeros((R, H, steps if options.no_repeat_ngram else 0), jnp.int32),
        state=strategy.start(request, H),
    )
    shape = (steps, R, H)
    chosen = BackPointers(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32))
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
    after, new = advance(search, replace(batch, beams=one))
    return replace(batch, beams=after, chosen=jax.tree.map(lambda x, y: x.at[0].set(y), batch.chosen, new))


def _collected(search: Search, batch: SearchBatch, found: Hypotheses) -> Hypotheses:
    """Return the hypotheses of all sentences, with those of a batch updated to what it has finished so far."""
    new = trace(batch.beams.finished, jax.tree.map(lambda x: x[: search.limit], batch.chosen))
    if search.options.groups > 1:
        new = merge_groups(new, search.options.groups)
    return jax.tree.map(lambda x, y: x.at[batch.indices].set(y), found, new)


def _run(search: Search, batch: SearchBatch, smaller: int) -> SearchBatch:
    """Advance until at most `smaller` sentences are alive."""

    def live(batch: SearchBatch) -> Array:
        return jnp.sum(_alive(batch), dtype=jnp.int32) > smaller

    def several(batch: SearchBatch) -> SearchBatch:
        def one(beams: Beams, _: None) -> tuple[Beams, BackPointers]:
            return advance(search, replace(batch, beams=beams))

        beams, new = lax.scan(one, batch.beams, length=search.chunk)
        at = batch.beams.step
        chosen = jax.tree.map(lambda x, y: lax.dynamic_update_slice_in_dim(x, y, at, 0), batch.chosen, new)
        return replace(batch, beams=beams, chosen=chosen)

    if search.chunk >= search.limit:
        return several(batch)  # nothing is alive after that, and without a while_loop there is a gradient
    return lax.while_loop(live, several, batch)


def _alive(batch: SearchBatch) -> Array:
    """Return which sentences have a live hypothesis, [B]."""
    return jnp.any(batch.beams.totals.reshape(batch.indices.shape[0], -1) > -jnp.inf, axis=-1)


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
    """Advance by one symbol: score all continuations, finish some, keep H alive, and stop the sentences that are done.

    Returns:
      The state after the step, and what the step chose.
    """
    options, strategy, request = search.options, search.strategy, batch.request
    beams, H = batch.beams, options.group_size
    (R, width), kind = beams.last.shape, beams.totals.dtype
    logits, cache = search.step(batch.memory, beams.cache, beams.last.reshape(-1))
    _check_result(R * width, beams.cache, logits, cache)
    now = SearchStep(options, request, beams.step, beams.totals, beams.history, beams.state, logits)
    candidates = strategy.choose(now)
    if not isinstance(candidates, tuple) or len(candidates) != len(Candidates._fields):
        raise TypeError("`choose` of the strategy has to return Candidates(totals, parents, tokens)")
    for name, x, dtype in zip(Candidates._fields, candidates, (kind, jnp.int32, jnp.int32), strict=True):
        _check_array(f"{name} of the strategy's candidates are", x, dtype, (R, 2 * H), "[R, 2H]")
    totals, parents, tokens = candidates

    ends = tokens == EOS
    ended = jnp.where(ends, totals, -jnp.inf)[:, :H]
    covered = None
    if options.coverage_penalty is not None and search.coverage is not None:
        coverage = jnp.asarray(search.coverage(batch.memory, cache))
        if coverage.size != R * width or not jnp.issubdtype(coverage.dtype, jnp.floating):
            _check_array("coverage returns", coverage, kind, (R * width,), "one number for each row")
        covered = pick(coverage.reshape(R, width).astype(kind), parents[:, :H])
    finished = finish(search.stop, options, beams.finished, beams.step, ended, parents[:, :H], covered)
    first = jnp.argsort(ends, axis=-1, stable=True)[:, :H]  # a hypothesis ends at most once, so H of 2H stay alive
    totals, parents, tokens = (pick(x, first) for x in (totals, parents, tokens))

    best = jnp.max(totals, axis=-1)
    early = jnp.asarray(search.stop.is_done(options, finished, beams.step, best, request.max_lengths))
    _check_array("is_done of the stopping rule returns", early, jnp.bool_, (R,), "[R]")
    done = (beams.step >= request.max_lengths) | early
    history = beams.history
    if history.shape[-1]:
        history = jnp.take_along_axis(history, parents[..., None], axis=1)
        history = lax.dynamic_update_slice_in_dim(history, tokens[..., None], beams.step, axis=2)
    if H > 1 or width > 1:
        rows = (jnp.arange(R, dtype=jnp.int32)[:, None] * width + parents).reshape(R * H)
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
    return after, BackPointers(tokens, parents, after.totals)


def _vocabulary_of(search: Search, memory: StepMemory, cache: StepCache, B: int) -> int:
    """Reject shapes and options that do not fit together. Return V, the number of symbols that the step scores."""
    N, options = B * search.options.beam_size, search.options
    for name, value in (("limit", search.limit), ("chunk", search.chunk)):
        if not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name} is {value}: use a Python integer of at least 1, which is static under `jit`")
    if options.coverage_penalty is not None and search.coverage is None:
        raise ValueError("coverage is None, but the search has a coverage penalty: pass coverage")
    if B == 0:
        raise ValueError("max_lengths is empty: a search needs at least one sentence")
    for what, rows, tree in (("B", B, {"memory": memory}), ("B * W", N, {"cache": cache})):
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if np.shape(leaf)[:1] != (rows,):
                shape = f"{_name(path)} has shape {np.shape(leaf)}"
                raise ValueError(f"{shape}: axis 0 must have {what} = {rows} rows")
    result = jax.eval_shape(search.step, memory, cache, jax.ShapeDtypeStruct((N,), jnp.int32))
    if not isinstance(result, tuple | list) or len(result) != 2:
        what = f"{len(result)} values" if isinstance(result, tuple | list) else f"a {type(result).__name__}"
        raise ValueError(f"the step returns {what}: expected two values, (logits [N, V], cache)")
    if options.lm_weight is not None and not isinstance(result[0], Fused):
        raise ValueError("lm_weight is above 0, but the step returns no logits of a language model: return Fused(...)")
    return _check_result(N, cache, *result)


def _check_result(rows: int, cache: StepCache, logits: Array | Fused, after: StepCache) -> int:
    """Reject results of a step whose shapes do not fit its inputs, `rows` last symbols and `cache`. Return V."""
    parts = {"logits.model": logits.model, "logits.lm": logits.lm} if isinstance(logits, Fused) else {"logits": logits}
    V = np.shape(next(iter(parts.values())))[-1:]
    for name, part in parts.items():
        shape = f"shape {part.shape}" if hasattr(part, "shape") else f"type {type(part).__name__}"
        ranks = (2,) if name == "logits.lm" else (2, 3)
        if not hasattr(part, "shape") or part.ndim not in ranks or part.shape[-2:] != (rows, *V) or V[0] < SPECIAL:
            raise ValueError(
                f"{name} of the step has {shape}: expected an array [N, V], or [M, N, V] for an ensemble (jnp.stack), "
                f"with the same V >= {SPECIAL} symbols and N = {rows} rows, one for each last token of this call; take "
                "per-row inputs of the step from its cache or memory"
            )
    old, new = (jax.tree_util.tree_leaves_with_path({"cache": x}) for x in (cache, after))
    if [path for path, _ in old] != [path for path, _ in new]:
        raise ValueError("the step returns a cache whose structure differs from that of its input cache")
    for (path, x), (_, y) in zip(old, new, strict=True):
        _check_array(f"{_name(path)} is returned as", y, x.dtype, x.shape, "as it enters the step")
    return int(V[0])


def _check_array(what: str, x: Array, dtype: DTypeLike, shape: tuple[int, ...], axes: str) -> None:
    """Reject an array that a function of the caller returned with another shape or dtype."""
    if (x.shape, x.dtype) != (shape, dtype):
        raise ValueError(f"{what} {x.dtype}{list(x.shape)}: expected {jnp.dtype(dtype)}{list(shape)}, {axes}")


def _name(path: Any) -> str:
    """Return the name of a leaf of {"cache": ...}, such as cache['a']."""
    return str(path[0].key) + jax.tree_util.keystr(path[1:])
