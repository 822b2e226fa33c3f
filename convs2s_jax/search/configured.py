"""Beam search with a user's options."""

from convs2s_jax.core.tokens import EOS
from convs2s_jax.models.checks import check_config
from convs2s_jax.search import beam
from convs2s_jax.search.beam import Coverage, StepFunction
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.hypotheses import Hypotheses
from convs2s_jax.search.numbers import Numbers, check_numbers, numbers_of
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
    chunk: int = 1,
    start: int = EOS,
    coverage: Coverage | None = None,
) -> Hypotheses:
    """Find the best hypotheses of B sentences over any step function, or draw samples (`search.beam.search`).

    Args:
      step: one step of the network; pure: (memory, cache, last tokens [N]) -> (logits or log-probabilities [N, V], new
        cache), the hypotheses of a sentence side by side. N changes from call to call: mostly B at the first symbol,
        then B * W with W = `search.beam_size`, and less once sentences are done. So what belongs to a row or a sentence
        comes from `memory` and `cache`, which are cut to the same rows; an array that the step closes over belongs to
        all rows.
      search: the options. Under `jit` they are static.
      memory: what `step` reads: the B sentences on axis 0 of every leaf.
      cache: the state before the start symbol: N rows on axis 0 of every leaf.
      request: what is asked of each sentence; of `max_lengths` at most `limit - 1` counts.
      limit: L, static length of the results in symbols, the end symbol counted.
      numbers: penalties and temperature in the place of those of `search`, for values that are traced, mapped or
        differentiated. Which of them are read at all is decided by `search`: a coverage_penalty only where that of
        `search` is above 0, for example.
      strategy: how candidates are chosen, in the place of what `search` and the phrases of the request ask for.
      chunk: steps between two checks for finished sentences; `jax.grad` needs `limit`.
      start: the symbol fed first.
      coverage: (memory, cache after a step) -> [N], for the coverage penalty.

    Returns:
      Hypotheses, best first.

    Raises:
      ValueError: shapes that do not fit, no sentence, prefixes or phrases outside the vocabulary (seen where they are
        not traced), no `coverage` or keys where the options need them, or a number that `search` leaves unread.
    """
    check_config(search, SearchConfig, name="search")
    numbers = numbers_of(search) if numbers is None else numbers
    check_numbers(numbers, search, own_strategy=strategy is not None)
    return beam.search(
        step,
        strategy or strategy_of(search, phrases=request.phrases.shape[1] > 0),
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
