"""Beam search with the options of a `SearchConfig`."""

from convs2s_jax.core.tokens import EOS
from convs2s_jax.models.checks import check_config
from convs2s_jax.search import beam
from convs2s_jax.search.callbacks import Coverage, StepFunction
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.finished import StoppingRule
from convs2s_jax.search.hypotheses import Hypotheses
from convs2s_jax.search.numbers import Numbers, checked_numbers, numbers_of
from convs2s_jax.search.request import Request
from convs2s_jax.search.state import StepCache, StepMemory
from convs2s_jax.search.strategies.base import Strategy
from convs2s_jax.search.strategies.table import strategy_of
from convs2s_jax.search.structure import structure_of


def beam_search(
    step: StepFunction,
    search: SearchConfig,
    *,
    memory: StepMemory,
    cache: StepCache,
    request: Request,
    limit: int,
    numbers: Numbers | None = None,
    strategy: Strategy | None = None,
    stop: StoppingRule | None = None,
    chunk: int = 1,
    start: int = EOS,
    coverage: Coverage | None = None,
) -> Hypotheses:
    """Find the best hypotheses of B sentences with any step function, or draw samples (`search.beam.search`).

    Args:
      step: one step of the network, a pure function (memory, cache, last tokens [N]) -> (logits, new cache). Logits may
        be log-probabilities. They are [N, V], [M, N, V] for the M members of an ensemble, or either of these with those
        of a language model (`rules.Fused`). The hypotheses of a sentence are adjacent. N changes from call to call. It
        is usually B at the first symbol, then B * W with W = `search.beam_size`, and less once sentences are done.
        Therefore, take per-row and per-sentence inputs from `memory` and `cache`, which are sliced to the same rows.
        Arrays that the step closes over are shared by all rows.
      search: the options, static under `jit`.
      memory: constant inputs of `step`, with the B sentences on axis 0 of every leaf.
      cache: the state before the start symbol, with N = B * W rows on axis 0 of every leaf.
      request: length bounds, prefixes, phrases and keys of each sentence; `max_lengths` above `limit - 1` are clipped.
      limit: L, static length of the results in symbols, including the end symbol.
      numbers: penalties and temperature that replace those of `search`, for values that are traced, mapped or
        differentiated. `search` decides which of them are used. For example, a coverage_penalty is used only if that of
        `search` is above 0.
      strategy: how candidates are chosen, instead of the strategy that `search` and the phrases of the request select.
      stop: when a sentence is done, instead of the rule that `search` and the strategy select.
      chunk: number of steps between two checks for finished sentences; `jax.grad` needs at least `limit`. A check is
        cheap; steps after the last sentence has finished are wasted.
      start: the symbol fed first.
      coverage: (memory, cache after a step) -> [N], the sum over source positions of log min(attention, 1), for the
        coverage penalty.

    Returns:
      Hypotheses, best first.

    Raises:
      ValueError: shapes do not fit; there is no sentence; prefixes or phrases are outside the vocabulary, or do not fit
        into a result; one of the `numbers` is out of bounds; `coverage` or keys are missing, or `search` does not use
        the keys or one of the `numbers`. Traced values are not checked.
      TypeError: `search`, `request`, `numbers` or `strategy` has another type.
    """
    check_config(search, SearchConfig, name="search")
    if not isinstance(strategy, Strategy | None):
        raise TypeError(f"strategy is a {type(strategy).__name__}: expected a Strategy, such as Strategy(choose)")
    if not isinstance(request, Request):
        raise TypeError(f"request is a {type(request).__name__}: expected what `request` returns")
    if request.keys is not None and strategy is None and not search.sampling:
        raise ValueError("the request has keys, but this search draws no samples: leave them out, or set sampling=True")
    own = strategy is not None
    numbers = numbers_of(search) if numbers is None else checked_numbers(numbers, search, own_strategy=own)
    chosen = strategy or strategy_of(search, phrases=request.phrases.shape[1] > 0)
    return beam.search(
        step,
        chosen if stop is None else chosen._replace(stop=stop),
        numbers,
        memory,
        cache,
        request,
        structure=structure_of(search),
        limit=limit,
        chunk=chunk,
        start=start,
        coverage=coverage,
    )
