"""How a search chooses the candidates that continue its hypotheses: the interface, and plain beam search.

Shapes: B sentences with a beam of W each, in G groups of H = W // G hypotheses; R = B * G rows of a search; V symbols.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from convs2s_jax.search import rules
from convs2s_jax.search.hypotheses import StoppingRule
from convs2s_jax.search.options import SearchOptions
from convs2s_jax.search.request import Request
from convs2s_jax.search.top import is_large, top, top_of_logits

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
class SearchStep:
    """What a strategy chooses from at one step.

    Attributes:
      options: the options.
      request: the request for each sentence, [R, ...].
      step: [], number of tokens that live hypotheses have so far.
      totals: [R, H], cumulative scores of live hypotheses; -inf for those that may not be continued.
      history: [R, H, L], their tokens so far; L = 0 if no rule needs them.
      state: the state of the strategy.
      logits: output of the network's step, [R * H, V] or more axes (see `rules.log_probabilities`).
    """

    options: SearchOptions
    request: Request
    step: Array
    totals: Array
    history: Array
    state: State
    logits: Array | rules.Fused

    def logit_bias(self) -> rules.LogitBias:
        """Return what is added to the log-probability of each symbol at this step."""
        return rules.logit_bias(self.options, self.step, self.request.max_lengths)

    def scores(self, own_rule: Callable[[Array, Array], Array] | None = None) -> Array:
        """Return what each continuation adds to the cumulative score, [R, H, V]: its log-probability under all rules.

        Args:
          own_rule: a rule of the strategy, called with the scores after n-gram blocking and with those before it. A
            forced prefix overrides it.
        """
        log_probs = rules.log_probabilities(self.logits, self.options).reshape(*self.totals.shape, -1)
        V = log_probs.shape[-1]
        free = log_probs + self.logit_bias().dense(V)[:, None, :]
        scores = free
        if self.options.no_repeat_ngram:
            again = rules.repeats(self.history, self.step, self.options.no_repeat_ngram, V)
            scores = jnp.where(again, -jnp.inf, scores)
        if own_rule is not None:
            scores = own_rule(scores, free)
        if self.request.prefixes.shape[1]:
            scores = rules.keep_prefix(scores, log_probs, self.options, self.request.prefixes, self.step)
        return scores


def no_phrases(request: Request) -> None:
    """`Strategy.check` for strategies that do not support constraints."""
    if request.phrases.shape[1]:
        raise ValueError("phrases work with plain beam search only: leave out sampling, diverse_groups and strategies")


class Strategy(NamedTuple):
    """How a search chooses the candidates that continue its hypotheses: pure functions and their requirements.

    Attributes:
      choose: returns the candidates of a step.
      start: (request [R, ...], H) -> the strategy's state before the first step.
      follow: (state, request, parents, tokens) -> the state of hypotheses that continue `parents` [R, X] with `tokens`
        [R, X].
      check: raises ValueError for a request that the strategy does not support.
      stop: a stopping rule that replaces that of the options, such as the one for samples, all of which have to finish.
      starts_as_one: whether the H hypotheses of a group are the same until the first symbol, so that only one of them
        is continued.
      first_step_on_one_row: whether the first step may pass a single hypothesis per sentence to `choose`, which then
        finds all 2H candidates from it.
    """

    choose: Callable[[SearchStep], Candidates]
    start: Callable[[Request, int], State] = lambda _request, _width: ()
    follow: Callable[[State, Request, Array, Array], State] = lambda state, *_: state
    check: Callable[[Request], None] = no_phrases
    stop: StoppingRule | None = None
    starts_as_one: bool = True
    first_step_on_one_row: bool = False


def plain(step: SearchStep) -> Candidates:
    """Return the 2H continuations with the highest cumulative scores, best first.

    If no rule depends on single continuations, the softmax over a large vocabulary is never materialised.
    """
    k, logits = 2 * step.options.group_size, step.logits
    ruled = step.request.prefixes.shape[1] or step.options.no_repeat_ngram
    if not ruled and not isinstance(logits, rules.Fused) and logits.ndim == 2 and is_large(logits.shape[-1]):
        found = logits.reshape(*step.totals.shape, -1).astype(jnp.float32)
        bias = step.logit_bias()
        return Candidates(*top_of_logits(found, step.totals, bias, k, temperature=step.options.temperature))
    return Candidates(*top(step.scores() + step.totals[:, :, None], k))


PLAIN = Strategy(plain, first_step_on_one_row=True)
