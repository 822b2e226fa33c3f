"""The strategy interface, and the view of a search step that strategies receive.

Shapes: B sentences with a beam of W each, in G groups of H = W // G hypotheses; R = B * G rows of a search; V symbols.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from convs2s_jax.search import rules
from convs2s_jax.search.finished import StoppingRule
from convs2s_jax.search.numbers import Numbers
from convs2s_jax.search.request import Request
from convs2s_jax.search.structure import Structure

State = Any
"""A strategy's own pytree, with [R, H] as the first two axes of every leaf."""


class Candidates(NamedTuple):
    """Continuations, in the order in which they get places in the beam.

    Attributes:
      totals: [R, 2H], cumulative scores; -inf for unused places.
      parents: [R, 2H] int32 in 0..H-1, the hypotheses that they continue.
      tokens: [R, 2H] int32, the symbols that they add.
    """

    totals: Array
    parents: Array
    tokens: Array


@dataclass(frozen=True)
class View:
    """What a strategy sees at one step.

    Attributes:
      structure: the static options.
      numbers: the traced options.
      request: the request for each sentence, [R, ...].
      step: [], number of tokens that live hypotheses have so far.
      totals: [R, H], cumulative scores of live hypotheses; -inf for those that may not be continued.
      history: [R, H, L], their tokens so far; L = 0 if no rule needs them.
      state: the state of the strategy.
      logits: output of the network's step, [R * H, V] or more axes (see `rules.log_probabilities`).
    """

    structure: Structure
    numbers: Numbers
    request: Request
    step: Array
    totals: Array
    history: Array
    state: State
    logits: Array | rules.Fused

    def prices(self) -> rules.Prices:
        """Return what is added to the log-probability of each symbol at this step."""
        return rules.prices(self.numbers, self.step, self.request.max_lengths)

    def scores(self, own_rule: Callable[[Array, Array], Array] | None = None) -> Array:
        """Return what each continuation adds to the cumulative score, [R, H, V]: its log-probability under all rules.

        Args:
          own_rule: a rule of the strategy, called with the scores after n-gram blocking and with those before it. A
            forced prefix overrides it.
        """
        log_probs = rules.log_probabilities(self.logits, self.numbers).reshape(*self.totals.shape, -1)
        V = log_probs.shape[-1]
        free = log_probs + self.prices().dense(V)[:, None, :]
        scores = free
        if self.structure.no_repeat_ngram:
            again = rules.repeats(self.history, self.step, self.structure.no_repeat_ngram, V)
            scores = jnp.where(again, -jnp.inf, scores)
        if own_rule is not None:
            scores = own_rule(scores, free)
        if self.request.prefixes.shape[1]:
            scores = rules.force(scores, log_probs, self.numbers, self.request.prefixes, self.step)
        return scores


def no_state(_request: Request, _width: int) -> State:
    """`Strategy.start` for strategies without state."""
    return ()


def same_state(state: State, _request: Request, _parents: Array, _tokens: Array) -> State:
    """`Strategy.follow` for strategies without state."""
    return state


def no_phrases(request: Request) -> None:
    """`Strategy.check` for strategies that do not support constraints."""
    if request.phrases.shape[1]:
        raise ValueError("phrases work with plain beam search only: leave out sampling, diverse_groups and strategies")


class Strategy(NamedTuple):
    """How a search chooses the candidates that continue its hypotheses: pure functions and their requirements.

    Attributes:
      choose: returns the candidates of a step.
      start: (request [R, ...], H) -> the strategy's state before the first step.
      follow: returns the state of hypotheses that continue `parents` [R, X] with `tokens` [R, X].
      check: raises ValueError for a request that the strategy does not support.
      stop: a stopping rule that replaces the structure's, such as the one for samples, all of which have to finish;
        None to keep that of the structure.
      starts_as_one: whether the H hypotheses of a group are the same until the first symbol, so that only one of them
        is continued.
      first_step_on_one_row: whether the first step may pass a single hypothesis per sentence to `choose`, which then
        finds all 2H candidates from it.
    """

    choose: Callable[[View], Candidates]
    start: Callable[[Request, int], State] = no_state
    follow: Callable[[State, Request, Array, Array], State] = same_state
    check: Callable[[Request], None] = no_phrases
    stop: StoppingRule | None = None
    starts_as_one: bool = True
    first_step_on_one_row: bool = False
