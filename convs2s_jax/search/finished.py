"""The finished hypotheses of each row of a search, and the stopping rule.

There are R = B * G rows, the groups of the sentences, of H hypotheses each. Except in diverse search, G is 1 and a row
is a sentence.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from convs2s_jax.nn import struct
from convs2s_jax.search.numbers import Numbers
from convs2s_jax.search.structure import Structure


@struct.dataclass
class Finished:
    """The H best finished hypotheses so far, best first; free places have score -inf.

    Attributes:
      scores: [R, H], normalised scores.
      totals: [R, H], cumulative scores.
      steps: [R, H] int32, the step that produced the end symbol.
      beams: [R, H] int32, the live hypothesis that the end symbol was added to.
    """

    scores: Array
    totals: Array
    steps: Array
    beams: Array


def empty_finished(R: int, H: int) -> Finished:
    """Return H free places for each of R rows."""
    none, zero = jnp.full((R, H), -jnp.inf, jnp.float32), jnp.zeros((R, H), jnp.int32)
    return Finished(none, none, zero, zero)


def finish(
    structure: Structure,
    numbers: Numbers,
    finished: Finished,
    step: Array,
    totals: Array,
    beams: Array,
    coverage: Array | None = None,
) -> Finished:
    """Add the hypotheses that ended at this step to the H best finished ones.

    Under fairseq's rule, places go to the hypotheses that finish first; under the exact rule, to the best.

    Args:
      structure, numbers: the options.
      finished: the finished hypotheses so far.
      step: [], index of the step.
      totals: [R, H] cumulative scores of those that ended; -inf for those that did not.
      beams: [R, H], the live hypotheses they came from.
      coverage: [R, H], the sum over source positions of log min(attention received, 1); None for 0.
    """
    H = totals.shape[1]
    if structure.stop == "fairseq":
        free = jnp.sum(finished.scores == -jnp.inf, axis=-1, keepdims=True)
        totals = jnp.where(jnp.cumsum(totals > -jnp.inf, axis=-1) <= free, totals, -jnp.inf)
    scores = normalised(structure, numbers, totals, step + 1)
    if coverage is not None:
        scores = scores + numbers.coverage_penalty * coverage
    both = jax.tree.map(
        lambda x, y: jnp.concatenate([x, y], axis=-1),
        finished,
        Finished(scores, totals, jnp.full_like(beams, step), beams),
    )
    _, best = lax.top_k(both.scores, H)
    return jax.tree.map(lambda x: jnp.take_along_axis(x, best, axis=-1, mode="promise_in_bounds"), both)


def is_done(
    structure: Structure, numbers: Numbers, finished: Finished, step: Array, best_total: Array, max_lengths: Array
) -> Array:
    """Return whether the search of each row is over after this step.

    It always stops at the maximum length. Before that, fairseq's rule (also used for samples) stops it when all H
    places are taken. The exact rule stops it when no live hypothesis can still beat the worst finished one.

    The exact rule uses the following bound. Log-probabilities are at most 0, so a live cumulative score c can only
    fall, except for a reward g = max(0, -unk_penalty) per token. With all tokens that are still allowed, it is at most
    c' = c + g * tokens. c' / l(L) is monotone in L, so its maximum over the allowed lengths is at the shortest or the
    longest, whatever the signs. Coverage adds at most 0.

    Args:
      structure, numbers: the options.
      finished: the finished hypotheses, including those of this step.
      step: [], index of the step just done.
      best_total: [R], the largest live cumulative score.
      max_lengths: [R], maximum number of tokens before the end symbol.

    Returns:
      [R] bool.
    """
    worst = finished.scores[:, -1]
    if structure.stop != "exact":
        return (step >= max_lengths) | (worst > -jnp.inf)
    tokens = step + 1
    reward = jnp.maximum(0.0, -numbers.unk_penalty)
    reach = best_total + reward * (max_lengths - tokens).astype(jnp.float32)
    shortest = jnp.maximum(tokens, jnp.minimum(numbers.min_length, max_lengths)) + 1
    bounds = (normalised(structure, numbers, reach, length) for length in (shortest, max_lengths + 1))
    return (step >= max_lengths) | (jnp.maximum(*bounds) <= worst)


def normalised(structure: Structure, numbers: Numbers, totals: Array, lengths: Array) -> Array:
    """Return the length-normalised score  log P / l(L)  (see `SearchConfig`) of L symbols, including the end symbol."""
    if structure.length_penalty == "none":
        return totals
    base = lengths.astype(jnp.float32)
    if structure.length_penalty == "gnmt":
        base = (5 + base) / 6
    exists = totals > -jnp.inf  # at -inf the derivative with respect to the exponent would be NaN
    return jnp.where(exists, jnp.where(exists, totals, 0.0) / base**numbers.length_penalty, -jnp.inf)
