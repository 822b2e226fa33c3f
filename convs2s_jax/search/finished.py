"""The finished hypotheses of each row of a search, and the stopping rules.

There are R = B * G rows, the groups of the sentences, of H hypotheses each. Except in diverse search, G is 1 and a row
is a sentence.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from convs2s_jax.nn import struct
from convs2s_jax.search.config import Stop
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


class StoppingRule(NamedTuple):
    """When the search of a sentence ends, and which finished hypotheses it returns: a pure function and a switch.

    Attributes:
      is_done: (structure, numbers, finished, step, best_total, max_lengths) -> [R] bool, whether the search of each row
        is over after this step. It always ends at the maximum length. `finished` includes the hypotheses of this step,
        whose index is `step` []; `best_total` [R] is the largest live cumulative score, and `max_lengths` [R] are the
        maximum numbers of tokens before the end symbol.
      first_come: whether places go to the hypotheses that finish first, not to the best.
    """

    is_done: Callable[[Structure, Numbers, Finished, Array, Array, Array], Array]
    first_come: bool = False


def finish(
    rule: StoppingRule,
    structure: Structure,
    numbers: Numbers,
    finished: Finished,
    step: Array,
    totals: Array,
    beams: Array,
    coverage: Array | None = None,
) -> Finished:
    """Add the hypotheses that ended at this step to the H best finished ones.

    Args:
      rule: the stopping rule.
      structure, numbers: the options.
      finished: the finished hypotheses so far.
      step: [], index of the step.
      totals: [R, H] cumulative scores of those that ended; -inf for those that did not.
      beams: [R, H], the live hypotheses they came from.
      coverage: [R, H], the sum over source positions of log min(attention received, 1); None for 0.
    """
    H = totals.shape[1]
    if rule.first_come:
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


def no_better_possible(
    structure: Structure, numbers: Numbers, finished: Finished, step: Array, best_total: Array, max_lengths: Array
) -> Array:
    """Return whether no live hypothesis can still beat the worst finished one, [R] bool: `is_done` of the exact rule.

    Log-probabilities are at most 0, so a live cumulative score c can only fall, except for a reward
    g = max(0, -unk_penalty) per token. With all tokens that are still allowed, it is at most c' = c + g * tokens.
    c' / l(L) is monotone in L, so its maximum over the allowed lengths is at the shortest or the longest, whatever the
    signs. Coverage adds at most 0.
    """
    tokens = step + 1
    reward = jnp.maximum(0.0, -numbers.unk_penalty)
    reach = best_total + reward * (max_lengths - tokens).astype(jnp.float32)
    shortest = jnp.maximum(tokens, jnp.minimum(numbers.min_length, max_lengths)) + 1
    bounds = (normalised(structure, numbers, reach, length) for length in (shortest, max_lengths + 1))
    return jnp.maximum(*bounds) <= finished.scores[:, -1]


def all_places_taken(_structure: Structure, _numbers: Numbers, finished: Finished, *_: Array) -> Array:
    """Return whether H hypotheses have finished, [R] bool: `is_done` of fairseq's rule, also used for samples."""
    return finished.scores[:, -1] > -jnp.inf


EXACT = StoppingRule(no_better_possible)
FAIRSEQ = StoppingRule(all_places_taken, first_come=True)
STOPPING_RULES: Mapping[Stop, StoppingRule] = MappingProxyType({"exact": EXACT, "fairseq": FAIRSEQ})
"""The rules by the names of `SearchConfig.stop`."""


def normalised(structure: Structure, numbers: Numbers, totals: Array, lengths: Array) -> Array:
    """Return the length-normalised score  log P / l(L)  (see `SearchConfig`) of L symbols, including the end symbol."""
    if structure.length_penalty == "none":
        return totals
    base = lengths.astype(jnp.float32)
    if structure.length_penalty == "gnmt":
        base = (5 + base) / 6
    exists = totals > -jnp.inf  # at -inf the derivative with respect to the exponent would be NaN
    return jnp.where(exists, jnp.where(exists, totals, 0.0) / base**numbers.length_penalty, -jnp.inf)
