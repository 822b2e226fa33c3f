"""Finished hypotheses: their normalised scores, when a sentence is done, and how they are read from back-pointers.

Shapes: B sentences with a beam of W hypotheses each.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.nn import struct
from convs2s_jax.search.config import Stop
from convs2s_jax.search.options import SearchOptions


@struct.dataclass
class Hypotheses:
    """The W best finished hypotheses of each sentence, best first; or W samples, sorted by score.

    If fewer than W could be finished (with a tiny vocabulary), the rest have length 0 and score -inf.

    Attributes:
      tokens: [B, W, L] int32, ending in EOS, then PAD.
      lengths: [B, W] int32, number of symbols, including the end symbol.
      scores: [B, W], normalised scores (see `SearchConfig`).
      token_scores: [B, W, L], the model's log-probability of each symbol in nats (at the temperature, minus the penalty
        for unknown symbols), 0 after the end symbol; they are differences of the cumulative scores. A sample is not
        drawn with these: they count symbols that cannot be drawn, and forced symbols at the model's probability.
      sampler_log_probs: [B, W, L], log-probability in nats with which each symbol of a sample was drawn: normalised
        over the symbols that could be drawn (with all rules, top-k and top-p), 0 for forced symbols and after the end
        symbol. None unless the strategy draws.
    """

    tokens: Array
    lengths: Array
    scores: Array
    token_scores: Array
    sampler_log_probs: Array | None = None


@struct.dataclass
class BackPointers:
    """What a step chose for the W live hypotheses of each sentence; of several steps, with a leading axis for them.

    Attributes:
      tokens, parents: [B, W] int32, the symbol that was added, and the hypothesis that was continued.
      totals: [B, W], cumulative scores.
      sampler_log_probs: [B, W], see `Hypotheses`, of the symbol that was added.
    """

    tokens: Array
    parents: Array
    totals: Array
    sampler_log_probs: Array | None = None


@struct.dataclass
class Finished:
    """The W best finished hypotheses of each sentence so far, best first; free places have score -inf.

    Attributes:
      scores, totals: [B, W], normalised and cumulative scores.
      steps: [B, W] int32, the step that produced the end symbol.
      beams: [B, W] int32, the live hypothesis that the end symbol was added to.
      sampler_log_probs: [B, W], see `Hypotheses`, of the end symbol.
    """

    scores: Array
    totals: Array
    steps: Array
    beams: Array
    sampler_log_probs: Array | None = None


class StoppingRule(NamedTuple):
    """When the search of a sentence ends, and which finished hypotheses it returns: a pure function and a switch.

    Attributes:
      is_done: (options, finished, step, best_total, max_lengths) -> [B] bool, whether each sentence is done
        after this step. It always is at the maximum length. `finished` includes the hypotheses of this step, whose
        index is `step` []; `best_total` [B] is the largest live cumulative score, and `max_lengths` [B] are the maximum
        numbers of tokens before the end symbol.
      first_come: whether places go to the hypotheses that finish first, not to the best.
    """

    is_done: Callable[[SearchOptions, Finished, Array, Array, Array], Array]
    first_come: bool = False


def finish(
    rule: StoppingRule,
    options: SearchOptions,
    finished: Finished,
    step: Array,
    totals: Array,
    beams: Array,
    coverage: Array | None = None,
    sampler_log_probs: Array | None = None,
) -> Finished:
    """Add the hypotheses that ended at this step to the W best finished ones.

    Args:
      rule, options: the stopping rule and the options.
      finished: the finished hypotheses so far.
      step: [], index of the step.
      totals: [B, W] cumulative scores of those that ended; -inf for those that did not.
      beams: [B, W], the live hypotheses they came from.
      coverage: [B, W], the sum over source positions of log min(attention received, 1); None for 0.
      sampler_log_probs: [B, W], of their end symbols.
    """
    W = totals.shape[1]
    if rule.first_come:
        free = jnp.sum(finished.scores == -jnp.inf, axis=-1, keepdims=True)
        totals = jnp.where(jnp.cumsum(totals > -jnp.inf, axis=-1) <= free, totals, -jnp.inf)
    scores = normalised(options, totals, step + 1)
    if coverage is not None and options.coverage_penalty is not None:
        scores = scores + options.coverage_penalty * coverage
    new = Finished(scores, totals, jnp.full_like(beams, step), beams, sampler_log_probs)
    both = jax.tree.map(lambda x, y: jnp.concatenate([x, y], axis=-1), finished, new)
    _, best = lax.top_k(both.scores, W)
    return jax.tree.map(lambda x: pick(x, best), both)


def no_better_possible(
    options: SearchOptions, finished: Finished, step: Array, best_total: Array, max_lengths: Array
) -> Array:
    """Return whether no live hypothesis can still beat the worst finished one, [B] bool: `is_done` of the exact rule.

    Log-probabilities are at most 0, so a live cumulative score c can only fall, except for a reward
    g = max(0, -unk_penalty) per token. With all tokens that are still allowed, it is at most c' = c + g * tokens.
    c' / l(L) is monotone in L, so its maximum over the allowed lengths is at the shortest or the longest, whatever the
    signs. Coverage adds at most 0.
    """
    tokens = step + 1
    reward = jnp.maximum(0.0, -options.unk_penalty)
    reach = best_total + reward * (max_lengths - tokens).astype(best_total.dtype)
    shortest = jnp.maximum(tokens, jnp.minimum(options.min_length, max_lengths)) + 1
    bounds = (normalised(options, reach, length) for length in (shortest, max_lengths + 1))
    return jnp.maximum(*bounds) <= finished.scores[:, -1]


def all_places_taken(_options: SearchOptions, finished: Finished, *_: Array) -> Array:
    """Return whether W hypotheses have finished, [B] bool: `is_done` of fairseq's rule, also used for samples."""
    return finished.scores[:, -1] > -jnp.inf


EXACT = StoppingRule(no_better_possible)
FAIRSEQ = StoppingRule(all_places_taken, first_come=True)
STOPPING_RULES: Mapping[Stop, StoppingRule] = MappingProxyType({"exact": EXACT, "fairseq": FAIRSEQ})
"""The rules by the names of `SearchConfig.stop`."""


def normalised(options: SearchOptions, totals: Array, lengths: Array) -> Array:
    """Return the length-normalised score  log P / l(L)  (see `SearchConfig`) of L symbols, including the end symbol."""
    if options.length_penalty is None:
        return totals
    base = lengths.astype(totals.dtype)
    if options.length_penalty_kind == "gnmt":
        base = (5 + base) / 6
    exists = totals > -jnp.inf  # at -inf the derivative with respect to the exponent would be NaN
    return jnp.where(exists, jnp.where(exists, totals, 0.0) / base**options.length_penalty, -jnp.inf)


def trace(finished: Finished, chosen: BackPointers) -> Hypotheses:
    """Follow finished hypotheses [B, W] through the choices [L, B, W] back to their first symbols: [B, W, L]."""
    exists = finished.scores > -jnp.inf
    last = jnp.where(exists, finished.steps, -1)

    def back(beams: Array, at: tuple[Array, BackPointers]) -> tuple[Array, tuple[Array, Array, Array | None]]:
        t, chosen = at
        inside, end = t < last, t == last
        tokens = jnp.where(end, EOS, jnp.where(inside, pick(chosen.tokens, beams), PAD))
        totals, drawn = jax.tree.map(
            lambda at_end, before: jnp.where(end, at_end, jnp.where(inside, pick(before, beams), 0.0)),
            (finished.totals, finished.sampler_log_probs),
            (chosen.totals, chosen.sampler_log_probs),
        )
        return jnp.where(inside, pick(chosen.parents, beams), beams), (tokens, totals, drawn)

    L = chosen.tokens.shape[0]
    steps = jnp.arange(L, dtype=jnp.int32)
    _, (tokens, totals, drawn) = lax.scan(back, finished.beams, (steps, chosen), reverse=True)
    before = jnp.concatenate([jnp.zeros_like(totals[:1]), totals[:-1]])
    scores = jnp.where(steps[:, None, None] <= last[None], totals - before, 0.0)
    tokens, scores, drawn = jax.tree.map(lambda x: jnp.moveaxis(x, 0, -1), (tokens, scores, drawn))
    return Hypotheses(tokens, last + 1, finished.scores, scores, drawn)


def pick(x: Array, index: Array) -> Array:
    """Select elements of the last axis by index."""
    return jnp.take_along_axis(x, index, axis=-1, mode="promise_in_bounds")
