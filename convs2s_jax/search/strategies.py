"""How a search chooses the candidates that continue its hypotheses: plain beam search, samples, and required phrases.

The phrases are met by a vectorised form of dynamic beam allocation (Post & Vilar 2018). A bank contains the candidates
that have met the same number of constraint tokens, and the beam is shared among the banks. Here, places are allocated
in rounds, the best candidate of each bank first, so that a bank with few candidates leaves its places to the others.

Shapes: B sentences with a beam of W hypotheses each, V symbols, C phrases of at most K tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from convs2s_jax.core.tokens import BOS, EOS, PAD
from convs2s_jax.search import rules
from convs2s_jax.search.hypotheses import FAIRSEQ, StoppingRule, pick
from convs2s_jax.search.options import SearchOptions
from convs2s_jax.search.requests import Request
from convs2s_jax.search.top import argmax, is_large, top, top_of_logits

State = Any
"""A strategy's own pytree, with [B, W] as the first two axes of every leaf."""


class Candidates(NamedTuple):
    """Continuations, in the order in which they get places in the beam.

    Attributes:
      totals: [B, 2W], cumulative scores; -inf for unused places.
      parents: [B, 2W] int32 in 0..W-1, the hypotheses that they continue.
      tokens: [B, 2W] int32, the symbols that they add.
      sampler_log_probs: [B, 2W], with which these were drawn (see `Hypotheses`); None unless the strategy draws.
    """

    totals: Array
    parents: Array
    tokens: Array
    sampler_log_probs: Array | None = None


@dataclass(frozen=True)
class SearchStep:
    """What a strategy chooses from at one step.

    Attributes:
      options: the options.
      request: the request for each sentence, [B, ...].
      step: [], number of tokens that live hypotheses have so far.
      totals: [B, W], cumulative scores of live hypotheses; -inf for those that may not be continued.
      history: [B, W, L], their tokens so far; L = 0 if no rule needs them.
      state: the state of the strategy.
      logits: output of the network's step, [B * W, V] or more axes (see `rules.log_probabilities`).
    """

    options: SearchOptions
    request: Request
    step: Array
    totals: Array
    history: Array
    state: State
    logits: Array

    def logit_bias(self) -> rules.LogitBias:
        """Return what is added to the log-probability of each symbol at this step."""
        return rules.logit_bias(self.options, self.step, self.request.max_lengths)

    def scores(self, own_rule: Callable[[Array, Array], Array] | None = None) -> Array:
        """Return what each continuation adds to the cumulative score, [B, W, V]: its log-probability under all rules.

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


class Strategy(NamedTuple):
    """How a search chooses the candidates that continue its hypotheses: pure functions and their requirements.

    Attributes:
      choose: returns the candidates of a step.
      start: (request [B, ...], W) -> the strategy's state before the first step.
      follow: (state, request, parents, tokens) -> the state of hypotheses that continue `parents` [B, X] with `tokens`
        [B, X].
      stop: a stopping rule that replaces that of the options, such as the one for samples, all of which have to finish.
      starts_as_one: whether the W hypotheses of a sentence are equal before the first symbol, so that only one of them
        is continued.
      first_step_on_one_row: whether the first step may pass a single hypothesis per sentence to `choose`, which then
        finds all 2W candidates from it.
      draws: whether its candidates have `sampler_log_probs`.
      meets_phrases: whether it meets the phrases of a request, which only the strategy for them does.
    """

    choose: Callable[[SearchStep], Candidates]
    start: Callable[[Request, int], State] = lambda _request, _width: ()
    follow: Callable[[State, Request, Array, Array], State] = lambda state, *_: state
    stop: StoppingRule | None = None
    starts_as_one: bool = True
    first_step_on_one_row: bool = False
    draws: bool = False
    meets_phrases: bool = False


def plain(step: SearchStep) -> Candidates:
    """Return the 2W continuations with the highest cumulative scores, best first.

    If no rule depends on single continuations, the softmax over a large vocabulary is never materialised.
    """
    k, logits = 2 * step.options.beam_size, step.logits
    ruled = step.request.prefixes.shape[1] or step.options.no_repeat_ngram
    if not ruled and logits.ndim == 2 and is_large(logits.shape[-1]):
        found = logits.reshape(*step.totals.shape, -1).astype(step.totals.dtype)
        bias = step.logit_bias()
        return Candidates(*top_of_logits(found, step.totals, bias, k, temperature=step.options.temperature))
    return Candidates(*top(step.scores() + step.totals[:, :, None], k))


def sampled(step: SearchStep) -> Candidates:
    """Choose a symbol for each of the W samples of a sentence: that of the largest score + Gumbel noise.

    The noise depends on the sentence's key, the step, and the sample's place among those that have not ended. It does
    not depend on the batch or its shape. The begin symbol is never drawn, as in fairseq, which leaves out the first two
    symbols. The others share its probability in proportion to theirs. The W samples of a sentence are independent: the
    same one may be drawn twice.

    Returns:
      The W samples, then W candidates with score -inf to fill up the 2W. `totals` add up the model's scores,
      `sampler_log_probs` are those of the distribution that is drawn from.
    """
    keys = step.request.keys
    scores = step.scores(lambda ruled, _free: ruled.at[..., BOS].set(-jnp.inf))
    B, W, V = scores.shape
    noise = jax.vmap(lambda key: jax.random.gumbel(jax.random.fold_in(key, step.step), (W, V), scores.dtype))(keys)
    kept = keep(step.options, scores)
    tokens = argmax(kept + noise)
    added = pick(scores, tokens[..., None])[..., 0]
    whole = jax.nn.logsumexp(jnp.maximum(kept, jnp.finfo(kept.dtype).min), axis=-1)  # of -inf alone, slopes are NaN
    own = jnp.broadcast_to(jnp.arange(W, dtype=jnp.int32), (B, W))
    return Candidates(
        jnp.concatenate([step.totals + added, jnp.full_like(added, -jnp.inf)], axis=-1),
        jnp.concatenate([own, own], axis=-1),
        jnp.concatenate([tokens, jnp.zeros_like(tokens)], axis=-1),
        jnp.concatenate([added - whole, jnp.zeros_like(added)], axis=-1),
    )


def keep(options: SearchOptions, scores: Array) -> Array:
    """Return scores [..., V] with -inf for the symbols that are not sampled from.

    Top-k keeps the k best symbols. After that, top-p keeps the smallest set of the best whose renormalised
    probabilities add up to p. Symbols as probable as the last one kept are kept too.
    """
    V, k = scores.shape[-1], options.top_k
    if 0 < k < V:
        scores = jnp.where(scores >= lax.top_k(scores, k)[0][..., -1:], scores, -jnp.inf)
    if options.top_p is not None:
        probabilities = -jnp.sort(-jax.nn.softmax(scores), axis=-1)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        least = jnp.min(jnp.where(before < options.top_p, probabilities, jnp.inf), axis=-1, keepdims=True)
        scores = jnp.where(jax.nn.softmax(scores) >= least, scores, -jnp.inf)
    return scores


def start(request: Request, W: int) -> Array:
    """Return the progress before the first token, [B, W, C, K + 1] bool.

    Entry j tells whether the newest j tokens of a hypothesis are the first j of a phrase; that of a phrase's length
    stays true once the phrase has occurred. (This is the automaton of Baeza-Yates & Gonnet 1992, a bit for each j.)
    """
    B, C, K = request.phrases.shape
    return jnp.broadcast_to(jnp.arange(K + 1, dtype=jnp.int32) == 0, (B, W, C, K + 1))


def follow(progress: Array, request: Request, parents: Array, tokens: Array) -> Array:
    """Return the progress of hypotheses that continue `parents` [B, X] with `tokens` [B, X]."""
    phrases = request.phrases[:, None]
    before = jnp.take_along_axis(progress, parents[..., None, None], axis=1)
    longer = before[..., :-1] & (tokens[..., None, None] == phrases) & (phrases != PAD)
    return jnp.concatenate([jnp.ones_like(before[..., :1]), longer], axis=-1) | (before & ends(request.phrases))


def ends(phrases: Array) -> Array:
    """Mark the length of each phrase: [B, C, K] -> [B, 1, C, K + 1] bool."""
    lengths = jnp.sum(phrases != PAD, axis=-1, dtype=jnp.int32)
    return jax.nn.one_hot(lengths, phrases.shape[-1] + 1, dtype=bool)[:, None]


def matched(progress: Array) -> Array:
    """Return how many tokens of each phrase are met, [B, X, C]: all of one that has occurred, else the newest ones."""
    return jnp.max(jnp.where(progress, lax.broadcasted_iota(jnp.int32, progress.shape, progress.ndim - 1), 0), axis=-1)


def restrict(scores: Array, free: Array, progress: Array, phrases: Array, room: Array) -> Array:
    """Forbid what would leave a phrase unmet: an early end, and other tokens when there is little room left.

    If the other rules forbid everything, the tokens that continue a phrase are allowed regardless.

    Args:
      scores: [B, W, V], scores under the other rules.
      free: [B, W, V], scores of the tokens that are allowed regardless of the other rules.
      progress: [B, W, C, K + 1].
      phrases: [B, C, K].
      room: [B], number of tokens that may still be produced before the end symbol.

    Returns:
      [B, W, V]. If a hypothesis can meet its phrases one after the other within `room`, only continuations after which
      it still can are allowed.
    """
    B, W, V = scores.shape
    unmet = ~jnp.any(progress & ends(phrases), axis=-1)
    begun = progress[..., :-1] & unmet[..., None] & (phrases != PAD)[:, None]
    token = jnp.where(begun, phrases[:, None], V)  # V is out of bounds and dropped
    rows = jnp.arange(B, dtype=jnp.int32)[:, None, None, None]
    beams = jnp.arange(W, dtype=jnp.int32)[None, :, None, None]
    after = jnp.broadcast_to(jnp.arange(1, phrases.shape[-1] + 1, dtype=jnp.int32), token.shape)
    gain = jnp.zeros(scores.shape, jnp.int32).at[rows, beams, token].max(after, mode="drop")
    lengths = jnp.sum(phrases != PAD, axis=-1, dtype=jnp.int32)
    remaining = jnp.sum(jnp.where(unmet, lengths[:, None], 0), axis=-1, dtype=jnp.int32)[..., None]
    scores = scores.at[..., EOS].add(jnp.where(jnp.any(unmet, axis=-1), -jnp.inf, 0.0))
    affordable = (remaining == 0) | (remaining - gain <= room[:, None, None] - 1)
    scores = jnp.where(affordable, scores, -jnp.inf)
    stuck = jnp.max(scores, axis=-1, keepdims=True) == -jnp.inf
    return jnp.where(stuck & affordable & (gain > 0), free, scores)


def constrained(step: SearchStep) -> Candidates:
    """Return the candidates of each sentence, with the places of the beam shared among the banks.

    Candidates are the 2W best continuations, the best one of each hypothesis, and for each hypothesis the next token of
    each phrase (Post & Vilar, section 3.1).
    """
    phrases, progress = step.request.phrases, step.state
    room = step.request.max_lengths - step.step
    scores = step.scores(lambda ruled, free: restrict(ruled, free, progress, phrases, room))
    B, W, V = scores.shape
    C = phrases.shape[1]
    padded = jnp.pad(phrases, ((0, 0), (0, 0), (0, 1)), constant_values=PAD)[:, None]
    wanted = jnp.take_along_axis(padded, matched(progress)[..., None], axis=-1)[..., 0]  # PAD after a whole phrase
    best = argmax(scores)
    every = jnp.broadcast_to(jnp.arange(W, dtype=jnp.int32)[None, :, None], (B, W, C + 1)).reshape(B, -1)
    more = jnp.concatenate([best[..., None], wanted], axis=-1).reshape(B, -1)
    summed = scores + step.totals[:, :, None]
    _, top_parents, top_tokens = top(summed, 2 * W)
    parents = jnp.concatenate([top_parents, every], axis=-1)
    tokens = jnp.concatenate([top_tokens, more], axis=-1)
    index = parents * V + tokens
    found = jnp.take_along_axis(summed.reshape(B, W * V), index, axis=-1)
    earlier = jnp.tri(index.shape[1], k=-1, dtype=bool)[None]
    twice = jnp.any((index[:, :, None] == index[:, None, :]) & earlier, axis=-1)
    found = jnp.where(twice, -jnp.inf, found)
    banks = jnp.sum(matched(follow(progress, step.request, parents, tokens)), axis=-1, dtype=jnp.int32)
    order = round_robin_order(found, banks)[:, : 2 * W]
    return Candidates(*(jnp.take_along_axis(x, order, axis=-1) for x in (found, parents, tokens)))


def round_robin_order(totals: Array, banks: Array) -> Array:
    """Return the order [B, X] in which candidates get places: the best of each bank, then the second best of each, ...

    Args:
      totals: [B, X], cumulative scores; -inf for candidates that come last.
      banks: [B, X], the number of constraint tokens that each candidate has met.
    """
    better = totals[:, None, :] > totals[:, :, None]
    equal = totals[:, None, :] == totals[:, :, None]
    first = better | (equal & jnp.tri(totals.shape[1], k=-1, dtype=bool)[None])
    place = jnp.sum(first & (banks[:, None, :] == banks[:, :, None]), axis=-1, dtype=jnp.int32)
    place = jnp.where(totals > -jnp.inf, place, totals.shape[1])
    return jnp.lexsort((-totals, place), axis=-1)


PLAIN = Strategy(plain, first_step_on_one_row=True)
SAMPLED = Strategy(sampled, stop=FAIRSEQ, starts_as_one=False, draws=True)
CONSTRAINED = Strategy(constrained, start, follow, meets_phrases=True)
