"""The result of a search, and its reconstruction from back-pointers."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.nn import struct
from convs2s_jax.search.finished import Finished


@struct.dataclass
class Hypotheses:
    """The W best finished hypotheses of each sentence, best first; or W samples.

    If fewer than W could be finished (with a tiny vocabulary), the rest have length 0 and score -inf.

    Attributes:
      tokens: [B, W, L] int32, ending in EOS, then PAD.
      lengths: [B, W] int32, number of symbols, including the end symbol.
      scores: [B, W], normalised scores (see `SearchConfig`).
      token_scores: [B, W, L], log-probability of each symbol in nats (at the temperature, minus the penalty for unknown
        symbols), 0 after the end symbol; they are differences of the cumulative scores.
    """

    tokens: Array
    lengths: Array
    scores: Array
    token_scores: Array


@struct.dataclass
class Trail:
    """The choices of a step for the H live hypotheses of each of R = B * G rows, the groups of B sentences.

    A trail over several steps has a leading axis for the steps.

    Attributes:
      tokens: [R, H] int32, the symbol that was added.
      parents: [R, H] int32, the hypothesis that was continued.
      totals: [R, H], cumulative scores.
    """

    tokens: Array
    parents: Array
    totals: Array


def empty(B: int, W: int, L: int) -> Hypotheses:
    """Return the result of a search in which nothing has finished yet."""
    return Hypotheses(
        tokens=jnp.full((B, W, L), PAD, jnp.int32),
        lengths=jnp.zeros((B, W), jnp.int32),
        scores=jnp.full((B, W), -jnp.inf, jnp.float32),
        token_scores=jnp.zeros((B, W, L), jnp.float32),
    )


def trace(finished: Finished, trail: Trail) -> Hypotheses:
    """Trace the finished hypotheses back to their first symbols.

    Args:
      finished: arrays [R, H].
      trail: arrays [L, R, H].

    Returns:
      The hypotheses of each row, [R, H, ...], L symbols long.
    """
    exists = finished.scores > -jnp.inf
    last = jnp.where(exists, finished.steps, -1)

    def back(beams: Array, at: tuple[Array, Trail]) -> tuple[Array, tuple[Array, Array]]:
        t, chosen = at
        inside, end = t < last, t == last
        tokens = jnp.where(end, EOS, jnp.where(inside, pick(chosen.tokens, beams), PAD))
        totals = jnp.where(end, finished.totals, jnp.where(inside, pick(chosen.totals, beams), 0.0))
        return jnp.where(inside, pick(chosen.parents, beams), beams), (tokens, totals)

    L = trail.tokens.shape[0]
    _, (tokens, totals) = lax.scan(back, finished.beams, (jnp.arange(L, dtype=jnp.int32), trail), reverse=True)
    before = jnp.concatenate([jnp.zeros_like(totals[:1]), totals[:-1]])
    scores = jnp.where(jnp.arange(L, dtype=jnp.int32)[:, None, None] <= last[None], totals - before, 0.0)
    tokens, scores = (jnp.moveaxis(x, 0, -1) for x in (tokens, scores))
    return Hypotheses(tokens, last + 1, finished.scores, scores)


def merge_groups(found: Hypotheses, groups: int) -> Hypotheses:
    """Merge the hypotheses of the groups of each sentence, [R = B * G, H, ...] -> [B, W = G * H, ...], best first."""
    if groups == 1:
        return found
    together = jax.tree.map(lambda x: x.reshape(x.shape[0] // groups, -1, *x.shape[2:]), found)
    order = jnp.argsort(-together.scores, axis=-1, stable=True)
    return jax.tree.map(lambda x: jnp.take_along_axis(x, order.reshape(order.shape + (1,) * (x.ndim - 2)), 1), together)


def pick(x: Array, index: Array) -> Array:
    """Select elements of the last axis by index."""
    return jnp.take_along_axis(x, index, axis=-1, mode="promise_in_bounds")
