"""Beam search over any network: it knows a step function and a cache, and keeps hypotheses as back-pointers.

The procedure is fairseq's (`SequenceGenerator`): of the 2W best continuations of a sentence's W live hypotheses, ends
ranked among the first W are finished, ends ranked lower are dropped, and the first W others live on, so that the beam
never shrinks. It differs from fairseq in the stopping rule (`SearchConfig.stop`) and in that a sentence's result
depends on nothing but the sentence.
"""

from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax import Array, lax

from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.search import rules
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.search.top import top

Cache = Any  # a pytree whose leaves have the N = B * W rows on axis 0, the beams of a sentence next to each other
Step = Callable[[Cache, Array], tuple[Array, Cache]]  # cache, last [N] -> logits or log-probabilities [N, V], cache


@flax.struct.dataclass
class Hypotheses:
    """The W best finished hypotheses of each sentence, best first.

    Where fewer than W could be finished (a tiny vocabulary), the rest have length 0 and score -inf.

    Attributes:
      tokens: [B, W, L] int32, ending in EOS, then PAD.
      lengths: [B, W] int32, symbols with the end symbol.
      scores: [B, W], cumulative score / length ** exponent.
      token_scores: [B, W, L] nats; log-probability (at the temperature, less the unknown symbol's penalty) of each
        symbol, 0 after the end symbol; they are differences of the cumulative scores.
    """

    tokens: Array
    lengths: Array
    scores: Array
    token_scores: Array


@flax.struct.dataclass
class Finished:
    """The W best finished hypotheses so far, best first; free places have score -inf. All [B, W]."""

    scores: Array  # normalised
    totals: Array  # cumulative
    steps: Array  # the step that produced the end symbol
    beams: Array  # the live hypothesis it was produced by


@flax.struct.dataclass
class Trail:
    """What each step chose: [W] live hypotheses of B sentences; a leading axis of steps once they are stacked."""

    tokens: Array
    parents: Array
    totals: Array


@flax.struct.dataclass
class Beams:
    """The state between two steps. `totals` are -inf for hypotheses that may not be continued."""

    step: Array  # []
    last: Array  # [B, W]
    totals: Array  # [B, W]
    cache: Cache
    finished: Finished


def search(
    step: Step, cfg: SearchConfig, cache: Cache, max_lengths: Array, *, limit: int, chunk: int = 4, start: int = EOS
) -> Hypotheses:
    """Find the best hypotheses of B sentences.

    Args:
      step: one step of the network; pure. It gets the cache and the last symbol [N] of every live hypothesis and
        returns logits or log-probabilities [N, V]; softmax, temperature and penalties are applied here.
      cfg: the options; `max_length_a` and `max_length_b` are not read here.
      cache: the state before the start symbol, rows [N = B * W] on axis 0 of every leaf.
      max_lengths: [B] integers, most tokens before the end symbol; at most `limit - 1` counts.
      limit: L, static length of the results in symbols, the end symbol counted.
      chunk: steps between two looks whether all sentences are done.
      start: the symbol fed first.

    Returns:
      Hypotheses, best first.

    Raises:
      ValueError: shapes that do not fit.
    """
    B, W = max_lengths.shape[0], cfg.beam_size
    _check_rows(cache, B * W)
    if limit < 1 or chunk < 1:
        raise ValueError(f"limit is {limit} and chunk is {chunk}: both are 1 or more")
    max_lengths = jnp.clip(max_lengths, 0, limit - 1).astype(jnp.int32)
    shape = (-(-limit // chunk) * chunk, B, W)
    trail = Trail(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32))

    def live(carry: tuple[Beams, Trail]) -> Array:
        return jnp.any(carry[0].totals > -jnp.inf)

    def several(carry: tuple[Beams, Trail]) -> tuple[Beams, Trail]:
        beams, trail = carry
        after, new = lax.scan(lambda b, _: advance(step, cfg, b, max_lengths), beams, length=chunk)
        return after, jax.tree.map(lambda x, y: lax.dynamic_update_slice_in_dim(x, y, beams.step, 0), trail, new)

    beams, trail = lax.while_loop(live, several, (_begin(cache, B, W, start), trail))
    return trace(beams.finished, jax.tree.map(lambda x: x[:limit], trail))


def advance(step: Step, cfg: SearchConfig, beams: Beams, max_lengths: Array) -> tuple[Beams, Trail]:
    """One symbol further: score all continuations, finish some, let W live on, end the sentences that are done."""
    B, W = beams.last.shape
    logits, cache = step(beams.cache, beams.last.reshape(B * W))
    log_probs = rules.log_probabilities(logits, cfg).reshape(B, W, -1)
    price = rules.prices(cfg, beams.step, max_lengths, log_probs.shape[-1])
    totals, parents, tokens = top(log_probs + price[:, None, :] + beams.totals[:, :, None], 2 * W)

    ends = tokens == EOS
    finished = finish(cfg, beams.finished, beams.step, jnp.where(ends, totals, -jnp.inf)[:, :W], parents[:, :W])
    first = jnp.argsort(ends, axis=-1, stable=True)[:, :W]  # a beam ends at most once: W of 2W always live on
    totals, parents, tokens = (_pick(x, first) for x in (totals, parents, tokens))

    done = is_done(cfg, finished, beams.step, totals[:, 0], max_lengths)
    totals = jnp.where(done[:, None], -jnp.inf, totals)
    after = Beams(beams.step + 1, tokens, totals, _reorder(cache, parents), finished)
    return after, Trail(tokens, parents, totals)


def finish(cfg: SearchConfig, finished: Finished, step: Array, totals: Array, beams: Array) -> Finished:
    """Put the hypotheses that ended at this step among the W best finished ones.

    Under fairseq's rule the places are taken first come, first served; under the exact rule the best keep them.

    Args:
      cfg: the options.
      finished: the places so far.
      step: [], the step.
      totals: [B, W] cumulative scores of those that ended, best first; -inf for those that did not.
      beams: [B, W], the live hypotheses they came from.
    """
    W = cfg.beam_size
    if cfg.stop == "fairseq":
        free = jnp.sum(finished.scores == -jnp.inf, axis=-1, keepdims=True)
        totals = jnp.where(jnp.cumsum(totals > -jnp.inf, axis=-1) <= free, totals, -jnp.inf)
    new = Finished(normalised(totals, step + 1, cfg), totals, jnp.full_like(beams, step), beams)
    both = jax.tree.map(lambda x, y: jnp.concatenate([x, y], axis=-1), finished, new)
    _, best = lax.top_k(both.scores, W)
    return jax.tree.map(lambda x: _pick(x, best), both)


def is_done(cfg: SearchConfig, finished: Finished, step: Array, best_total: Array, max_lengths: Array) -> Array:
    """Whether the search of a sentence is over after this step.

    It is at the longest allowed length, and when all W places are taken (fairseq's rule) or when no live hypothesis
    can reach a better score than the worst place has (exact rule). A live cumulative score c can only fall, for
    log-probabilities are not positive, but for a reward g = max(0, -unk_penalty) for each of the tokens still allowed:
    c' = c + g * tokens. As c' / L ** exponent is monotone in L, its largest value over the lengths allowed lies at the
    shortest or at the longest, whatever the signs.

    Args:
      cfg: the options.
      finished: the places, this step's included.
      step: [], the step just done.
      best_total: [B], the largest live cumulative score.
      max_lengths: [B], most tokens before the end symbol.

    Returns:
      [B] bool.
    """
    worst = finished.scores[:, -1]
    if cfg.stop == "fairseq":
        return (step >= max_lengths) | (worst > -jnp.inf)
    tokens = step + 1
    reach = best_total + max(0.0, -cfg.unk_penalty) * (max_lengths - tokens).astype(jnp.float32)
    shortest = jnp.maximum(tokens, jnp.minimum(cfg.min_length, max_lengths)) + 1
    bound = jnp.maximum(normalised(reach, shortest, cfg), normalised(reach, max_lengths + 1, cfg))
    return (step >= max_lengths) | (bound <= worst)


def normalised(totals: Array, lengths: Array, cfg: SearchConfig) -> Array:
    """Length-normalised score: cumulative / length ** exponent, the end symbol counted."""
    return totals / lengths.astype(jnp.float32) ** cfg.exponent


def trace(finished: Finished, trail: Trail) -> Hypotheses:
    """Follow the finished hypotheses back to their beginnings.

    Args:
      finished: [B, W] each.
      trail: [L, B, W] each.

    Returns:
      The hypotheses, L symbols long.
    """
    exists = finished.scores > -jnp.inf
    last = jnp.where(exists, finished.steps, -1)

    def back(beams: Array, at: tuple[Array, Trail]) -> tuple[Array, tuple[Array, Array]]:
        t, chosen = at
        inside, end = t < last, t == last
        tokens = jnp.where(end, EOS, jnp.where(inside, _pick(chosen.tokens, beams), PAD))
        totals = jnp.where(end, finished.totals, jnp.where(inside, _pick(chosen.totals, beams), 0.0))
        return jnp.where(inside, _pick(chosen.parents, beams), beams), (tokens, totals)

    L = trail.tokens.shape[0]
    _, (tokens, totals) = lax.scan(back, finished.beams, (jnp.arange(L, dtype=jnp.int32), trail), reverse=True)
    before = jnp.concatenate([jnp.zeros_like(totals[:1]), totals[:-1]])
    scores = jnp.where(jnp.arange(L, dtype=jnp.int32)[:, None, None] <= last[None], totals - before, 0.0)
    tokens, scores = (jnp.moveaxis(x, 0, -1) for x in (tokens, scores))
    return Hypotheses(tokens, last + 1, finished.scores, scores)


def _begin(cache: Cache, B: int, W: int, start: int) -> Beams:
    """All hypotheses of a sentence are equal at first: only the first may be continued."""
    none = jnp.full((B, W), -jnp.inf, jnp.float32)
    totals, zero = none.at[:, 0].set(0.0), jnp.zeros((B, W), jnp.int32)
    return Beams(jnp.int32(0), jnp.full((B, W), start, jnp.int32), totals, cache, Finished(none, none, zero, zero))


def _reorder(cache: Cache, parents: Array) -> Cache:
    """Give each live hypothesis the cache of the one it continues."""
    B, W = parents.shape
    if W == 1:
        return cache
    rows = (jnp.arange(B, dtype=jnp.int32)[:, None] * W + parents).reshape(B * W)
    return jax.tree.map(lambda x: x.at[rows].get(mode="promise_in_bounds"), cache)


def _pick(x: Array, index: Array) -> Array:
    return jnp.take_along_axis(x, index, axis=-1, mode="promise_in_bounds")


def _check_rows(cache: Cache, rows: int) -> None:
    for path, leaf in jax.tree_util.tree_leaves_with_path(cache):
        if leaf.ndim == 0 or leaf.shape[0] != rows:
            name = jax.tree_util.keystr(path)
            raise ValueError(f"cache{name} has shape {leaf.shape}: axis 0 must hold B * W = {rows} rows")
