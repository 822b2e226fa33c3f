"""Positive lexical constraints: phrases that must occur in a hypothesis, in any order.

This is a vectorised form of dynamic beam allocation (Post & Vilar 2018). A bank contains the candidates that have met
the same number of constraint tokens, and the beam is shared among the banks. Here, places are allocated in rounds, the
best candidate of each bank first, so that a bank with few candidates leaves its places to the others.

Shapes: R = B sentences (G = 1), H = W hypotheses per sentence, C phrases of at most K tokens.
"""

import jax.numpy as jnp
from jax import Array

from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.nn import struct
from convs2s_jax.search.request import Request
from convs2s_jax.search.strategies.base import Candidates, Strategy, View
from convs2s_jax.search.top import top


@struct.dataclass
class Progress:
    """The progress of hypotheses with their phrases.

    Attributes:
      met: [R, H, C] bool, phrases that have occurred.
      recent: [R, H, K] int32, the last K tokens, newest last; PAD before the first.
    """

    met: Array
    recent: Array


def start(request: Request, H: int) -> Progress:
    """Return the progress before the first token, when only empty phrases are met."""
    R, C, K = request.phrases.shape
    met = jnp.broadcast_to((lengths(request.phrases) == 0)[:, None], (R, H, C))
    return Progress(met=met, recent=jnp.full((R, H, K), PAD, jnp.int32))


def follow(progress: Progress, request: Request, parents: Array, tokens: Array) -> Progress:
    """Return the progress of hypotheses that continue `parents` [R, X] with `tokens` [R, X]."""
    phrases = request.phrases
    met = jnp.take_along_axis(progress.met, parents[..., None], axis=1)
    recent = jnp.take_along_axis(progress.recent, parents[..., None], axis=1)
    recent = jnp.concatenate([recent, tokens[..., None]], axis=-1)[..., 1:]
    return Progress(met=met | (matched(recent, phrases) == lengths(phrases)[:, None]), recent=recent)


def lengths(phrases: Array) -> Array:
    """Return the number of tokens of each phrase: [..., K] -> [...]."""
    return jnp.sum(phrases != PAD, axis=-1, dtype=jnp.int32)


def spelt(recent: Array, phrases: Array) -> Array:
    """Return whether the newest j tokens are the first j of a phrase, for j from 0 to K.

    Args:
      recent: [R, X, K].
      phrases: [R, C, K].

    Returns:
      [R, X, C, K + 1] bool.
    """
    K = phrases.shape[-1]
    real = phrases != PAD
    found = [jnp.ones((*recent.shape[:2], phrases.shape[1]), bool)]
    for j in range(1, K + 1):
        same = (recent[:, :, None, K - j :] == phrases[:, None, :, :j]) & real[:, None, :, :j]
        found.append(jnp.all(same, axis=-1))
    return jnp.stack(found, axis=-1)


def matched(recent: Array, phrases: Array) -> Array:
    """Return how many tokens of each phrase the newest tokens match, [R, X, C]: the longest prefix they end in."""
    count = jnp.arange(phrases.shape[-1] + 1, dtype=jnp.int32)
    return jnp.max(jnp.where(spelt(recent, phrases), count, 0), axis=-1)


def restrict(scores: Array, free: Array, progress: Progress, phrases: Array, room: Array) -> Array:
    """Forbid what would leave a phrase unmet: an early end, and other tokens when there is little room left.

    If the other rules forbid everything, the tokens that continue a phrase are allowed regardless.

    Args:
      scores: [R, H, V], scores under the other rules.
      free: [R, H, V], scores of the tokens that are allowed regardless of the other rules.
      progress: progress of the R * H hypotheses.
      phrases: [R, C, K].
      room: [R], number of tokens that may still be produced before the end symbol.

    Returns:
      [R, H, V]. If a hypothesis can meet its phrases one after the other within `room`, only continuations after which
      it still can are allowed.
    """
    R, H, V = scores.shape
    unmet = ~progress.met
    begun = spelt(progress.recent, phrases)[..., :-1] & unmet[..., None]
    token = jnp.where(begun, phrases[:, None], V)  # V is out of bounds and dropped
    rows = jnp.arange(R, dtype=jnp.int32)[:, None, None, None]
    beams = jnp.arange(H, dtype=jnp.int32)[None, :, None, None]
    after = jnp.broadcast_to(jnp.arange(1, phrases.shape[-1] + 1, dtype=jnp.int32), token.shape)
    gain = jnp.zeros(scores.shape, jnp.int32).at[rows, beams, token].max(after, mode="drop")
    remaining = jnp.sum(jnp.where(unmet, lengths(phrases)[:, None], 0), axis=-1, dtype=jnp.int32)[..., None]
    scores = scores.at[..., EOS].add(jnp.where(jnp.all(progress.met, axis=-1), 0.0, -jnp.inf))
    affordable = (remaining == 0) | (remaining - gain <= room[:, None, None] - 1)
    scores = jnp.where(affordable, scores, -jnp.inf)
    stuck = jnp.max(scores, axis=-1, keepdims=True) == -jnp.inf
    return jnp.where(stuck & affordable & (gain > 0), free, scores)


def next_tokens(spelt: Array, phrases: Array) -> Array:
    """Return the token that continues each phrase, [R, X, C]; PAD at the end of a phrase."""
    K = phrases.shape[-1]
    within = jnp.minimum(spelt, K - 1)[..., None]
    phrases = jnp.broadcast_to(phrases[:, None], (*spelt.shape, K))
    token = jnp.take_along_axis(phrases, within, axis=-1)[..., 0]
    return jnp.where(spelt < K, token, PAD)


def choose(view: View) -> Candidates:
    """Return the candidates of each sentence, with the places of the beam shared among the banks.

    Candidates are the 2H best continuations, the best one of each hypothesis, and for each hypothesis the next token of
    each phrase (Post & Vilar, section 3.1).
    """
    phrases, progress = view.request.phrases, view.state
    room = view.request.max_lengths - view.step
    scores = view.scores(lambda ruled, free: restrict(ruled, free, progress, phrases, room))
    R, H, V = scores.shape
    C = phrases.shape[1]
    wanted = jnp.where(progress.met, PAD, next_tokens(matched(progress.recent, phrases), phrases))
    best = jnp.argmax(scores, axis=-1).astype(jnp.int32)
    every = jnp.broadcast_to(jnp.arange(H, dtype=jnp.int32)[None, :, None], (R, H, C + 1)).reshape(R, -1)
    more = jnp.concatenate([best[..., None], wanted], axis=-1).reshape(R, -1)
    summed = scores + view.totals[:, :, None]
    _, top_parents, top_tokens = top(summed, 2 * H)
    parents = jnp.concatenate([top_parents, every], axis=-1)
    tokens = jnp.concatenate([top_tokens, more], axis=-1)
    index = parents * V + tokens
    found = jnp.take_along_axis(summed.reshape(R, H * V), index, axis=-1)
    earlier = jnp.tri(index.shape[1], k=-1, dtype=bool)[None]
    twice = jnp.any((index[:, :, None] == index[:, None, :]) & earlier, axis=-1)
    found = jnp.where(twice, -jnp.inf, found)
    order = round_robin_order(found, bank(follow(progress, view.request, parents, tokens), phrases))[:, : 2 * H]
    return Candidates(*(jnp.take_along_axis(x, order, axis=-1) for x in (found, parents, tokens)))


def bank(progress: Progress, phrases: Array) -> Array:
    """Return the number of constraint tokens met, [R, X]: all of a phrase that has occurred, else the matched ones."""
    spelt = jnp.where(progress.met, lengths(phrases)[:, None], matched(progress.recent, phrases))
    return jnp.sum(spelt, axis=-1, dtype=jnp.int32)


def round_robin_order(totals: Array, banks: Array) -> Array:
    """Return the order [R, X] in which candidates get places: the best of each bank, then the second best of each, ...

    Args:
      totals: [R, X], cumulative scores; -inf for candidates that come last.
      banks: [R, X], the bank of each candidate.
    """
    better = totals[:, None, :] > totals[:, :, None]
    equal = totals[:, None, :] == totals[:, :, None]
    first = better | (equal & jnp.tri(totals.shape[1], k=-1, dtype=bool)[None])
    place = jnp.sum(first & (banks[:, None, :] == banks[:, :, None]), axis=-1, dtype=jnp.int32)
    place = jnp.where(totals > -jnp.inf, place, totals.shape[1])
    return jnp.lexsort((-totals, place), axis=-1)


def check(_request: Request) -> None:
    """Accept any request, with or without phrases."""


CONSTRAINED = Strategy(choose, start, follow, check)
