"""Strategies other than plain beam search: samples, diverse groups, and phrases that must occur in any order.

The phrases are met by a vectorised form of dynamic beam allocation (Post & Vilar 2018). A bank contains the candidates
that have met the same number of constraint tokens, and the beam is shared among the banks. Here, places are allocated
in rounds, the best candidate of each bank first, so that a bank with few candidates leaves its places to the others.

Shapes: R = B * G rows, the groups of B sentences (G = 1 except in diverse search), H = W // G hypotheses per row, V
symbols, C phrases of at most K tokens.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax

from convs2s_jax.core.tokens import BOS, EOS, PAD
from convs2s_jax.nn import struct
from convs2s_jax.search.hypotheses import FAIRSEQ, Hypotheses
from convs2s_jax.search.options import SearchOptions
from convs2s_jax.search.request import Request
from convs2s_jax.search.strategies import Candidates, SearchStep, Strategy, no_phrases
from convs2s_jax.search.top import top


def sampled(step: SearchStep) -> Candidates:
    """Choose a symbol for each of the H = W samples of a sentence (R = B): that of the largest score + Gumbel noise.

    The noise depends on the sentence's key, the step, and the sample's place among those that have not ended. It does
    not depend on the batch or its shape. The begin symbol is never drawn, as in fairseq, which leaves out the first two
    symbols. The others share its probability in proportion to theirs.

    Returns:
      The H samples, then H candidates with score -inf to fill up the 2H.
    """
    keys = step.request.keys
    scores = step.scores(lambda ruled, _free: ruled.at[..., BOS].set(-jnp.inf))
    R, H, V = scores.shape
    noise = jax.vmap(lambda key: jax.random.gumbel(jax.random.fold_in(key, step.step), (H, V), scores.dtype))(keys)
    tokens = jnp.argmax(keep(step.options, scores) + noise, axis=-1).astype(jnp.int32)
    new = step.totals + jnp.take_along_axis(scores, tokens[..., None], axis=-1)[..., 0]
    own = jnp.broadcast_to(jnp.arange(H, dtype=jnp.int32), (R, H))
    dead = jnp.full((R, H), -jnp.inf, new.dtype)
    return Candidates(
        jnp.concatenate([new, dead], axis=-1),
        jnp.concatenate([own, own], axis=-1),
        jnp.concatenate([tokens, jnp.zeros_like(tokens)], axis=-1),
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


def diverse(step: SearchStep) -> Candidates:
    """Return the best continuations of each group, one group after another (Vijayakumar et al. 2018, algorithm 1).

    A group's candidates are ordered by  cumulative score - strength * (how often earlier groups chose this token at
    this step),  the Hamming diversity. The returned cumulative scores do not include the second term. The G groups of a
    sentence are adjacent on the axis R = B * G.
    """
    G, strength = step.options.groups, jnp.asarray(step.options.diverse_strength)
    scores = step.scores()
    R, H, V = scores.shape
    grouped = (scores + step.totals[:, :, None]).reshape(R // G, G, H, V)
    times = jnp.zeros((R // G, V), jnp.float32)
    sentence = jnp.arange(R // G, dtype=jnp.int32)[:, None]
    results = []
    for group in range(G):
        steered, beams, tokens = top(grouped[:, group] - strength * times[:, None, :], 2 * H)
        found = grouped[:, group].reshape(R // G, H * V)
        results.append((jnp.take_along_axis(found, beams * V + tokens, axis=-1), beams, tokens))
        lives = (tokens != EOS) & (steered > -jnp.inf)
        chosen = lives & (jnp.cumsum(lives, axis=-1) <= H)
        times = times.at[sentence, tokens].add(chosen.astype(times.dtype))
    totals, beams, tokens = (jnp.stack(x, axis=1).reshape(R, 2 * H) for x in zip(*results, strict=True))
    return Candidates(totals, beams, tokens)


def merge_groups(found: Hypotheses, groups: int) -> Hypotheses:
    """Merge the hypotheses of the groups of each sentence, [R = B * G, H, ...] -> [B, W = G * H, ...], best first."""
    together = jax.tree.map(lambda x: x.reshape(x.shape[0] // groups, -1, *x.shape[2:]), found)
    order = jnp.argsort(-together.scores, axis=-1, stable=True)
    return jax.tree.map(lambda x: jnp.take_along_axis(x, order.reshape(order.shape + (1,) * (x.ndim - 2)), 1), together)


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


def constrained(step: SearchStep) -> Candidates:
    """Return the candidates of each sentence, with the places of the beam shared among the banks.

    Candidates are the 2H best continuations, the best one of each hypothesis, and for each hypothesis the next token of
    each phrase (Post & Vilar, section 3.1).
    """
    phrases, progress = step.request.phrases, step.state
    room = step.request.max_lengths - step.step
    scores = step.scores(lambda ruled, free: restrict(ruled, free, progress, phrases, room))
    R, H, V = scores.shape
    C = phrases.shape[1]
    wanted = jnp.where(progress.met, PAD, next_tokens(matched(progress.recent, phrases), phrases))
    best = jnp.argmax(scores, axis=-1).astype(jnp.int32)
    every = jnp.broadcast_to(jnp.arange(H, dtype=jnp.int32)[None, :, None], (R, H, C + 1)).reshape(R, -1)
    more = jnp.concatenate([best[..., None], wanted], axis=-1).reshape(R, -1)
    summed = scores + step.totals[:, :, None]
    _, top_parents, top_tokens = top(summed, 2 * H)
    parents = jnp.concatenate([top_parents, every], axis=-1)
    tokens = jnp.concatenate([top_tokens, more], axis=-1)
    index = parents * V + tokens
    found = jnp.take_along_axis(summed.reshape(R, H * V), index, axis=-1)
    earlier = jnp.tri(index.shape[1], k=-1, dtype=bool)[None]
    twice = jnp.any((index[:, :, None] == index[:, None, :]) & earlier, axis=-1)
    found = jnp.where(twice, -jnp.inf, found)
    order = round_robin_order(found, bank(follow(progress, step.request, parents, tokens), phrases))[:, : 2 * H]
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


def _check_sampling(request: Request) -> None:
    if request.keys is None:
        raise ValueError("sampling needs a random key for each sentence: pass keys in the request")
    no_phrases(request)


SAMPLED = Strategy(sampled, check=_check_sampling, stop=FAIRSEQ, starts_as_one=False)
DIVERSE = Strategy(diverse)
CONSTRAINED = Strategy(constrained, start, follow, check=lambda _request: None)
