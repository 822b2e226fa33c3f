"""Exact top-k over the continuations of a beam, without sorting the vocabulary."""

import jax.numpy as jnp
from jax import Array, lax

from convs2s_jax.search.options import Scalar
from convs2s_jax.search.rules import SPECIAL, LogitBias

BLOCK = 128


def block_size(vocab_size: int) -> int:
    """Return the number of columns per block: close to 128 and, if possible, a divisor of the vocabulary size."""
    near = sorted(range(BLOCK // 2, 2 * BLOCK + 1), key=lambda size: abs(size - BLOCK))
    return next((size for size in near if vocab_size % size == 0), BLOCK)


def is_large(vocab_size: int) -> bool:
    """Return whether a vocabulary is large enough for the search by blocks: at least four blocks."""
    return 4 * block_size(vocab_size) <= vocab_size


def top(scores: Array, k: int) -> tuple[Array, Array, Array]:
    """Return the k best of the W * V continuations of each row, best first; ties in the order of their index.

    The vocabulary is split into blocks. The k best elements are in the k blocks with the largest maxima, so one
    vectorised maximum over all scores leaves k * block elements to select from. The result is exactly that of
    `lax.top_k(scores.reshape(B, W * V), k)`, in less than half the time on a CPU at V = 10,000.

    `scores` is [B, W, V], and k at most W * V. Returns values [B, k], beams [B, k] int32 in 0..W-1, and tokens
    [B, k] int32 in 0..V-1.
    """
    B, W, V = scores.shape
    if not is_large(V):
        values, index = lax.top_k(scores.reshape(B, W * V), k)
        return values, index // V, index % V
    block = block_size(V)
    beams, columns = _best_blocks(_block_maxima(scores, block), k, block)
    found = _elements(scores, beams, columns)
    values, place = lax.top_k(jnp.where(columns < V, found, -jnp.inf).reshape(B, -1), k)
    return values, _pick(beams, place), _pick(columns, place)


def argmax(scores: Array) -> Array:
    """Return `jnp.argmax` of [B, W, V] over the last axis, int32, which XLA computes thirty times as slowly on CPUs."""
    B, W, V = scores.shape
    _, _, best = top(scores.reshape(B * W, 1, V), 1)
    return best.reshape(B, W)


def top_of_logits(
    logits: Array, totals: Array, bias: LogitBias, k: int, *, temperature: Scalar
) -> tuple[Array, Array, Array]:
    """Return `top` of  log_softmax(logits / temperature) + bias + totals, without storing that array.

    The softmax shifts all scores of a hypothesis by the same amount, so its best blocks are those of the logits. Only
    elements of the chosen blocks are scored. The logits are read twice, for the maxima and for the sum of exponentials.

    Args:
      logits: [B, W, V] in the dtype of the scores, with V at least four blocks.
      totals: [B, W], cumulative scores.
      bias: what is added to each symbol's log-probability.
      k, temperature: at most W * V; logits are divided by the temperature.

    Returns:
      As `top`; hypotheses whose logits contain a NaN have no continuation.
    """
    V = logits.shape[-1]
    block = block_size(V)
    logits = lax.optimization_barrier(logits)  # otherwise XLA adds the bias again for each use
    maxima = lax.optimization_barrier(_block_maxima(logits, block))
    largest = jnp.max(maxima, axis=-1)
    sums = jnp.sum(jnp.exp((logits - largest[..., None]) / temperature), axis=-1)
    shift = totals - largest / temperature - jnp.log(sums)
    shift = jnp.where(jnp.isnan(shift), -jnp.inf, shift)[..., None]

    first = jnp.max(logits[..., :block] / temperature + bias.dense(block)[:, None, :], axis=-1, keepdims=True)
    others = maxima[..., 1:] / temperature + bias.others[:, None, None]
    reached = jnp.concatenate([first, others], axis=-1) + shift
    beams, columns = _best_blocks(jnp.where(jnp.isnan(reached), -jnp.inf, reached), k, block)
    added = jnp.where(
        columns < SPECIAL,
        jnp.take_along_axis(bias.special[:, None], jnp.minimum(columns, SPECIAL - 1), axis=-1),
        bias.others[:, None, None],
    )
    found = _elements(logits, beams, columns) / temperature + added
    found = found + jnp.take_along_axis(shift[..., 0], beams[..., 0], axis=-1)[..., None]
    found = jnp.where((columns < V) & ~jnp.isnan(found), found, -jnp.inf)
    values, place = lax.top_k(found.reshape(len(found), -1), k)
    return values, _pick(beams, place), _pick(columns, place)


def _best_blocks(maxima: Array, k: int, block: int) -> tuple[Array, Array]:
    """Return the hypothesis and the column of each element of the k blocks with the largest `maxima` [B, W, M].

    Both are [B, k, block]; columns of the last block may be outside the vocabulary.
    """
    B, W, M = maxima.shape
    _, chosen = lax.top_k(maxima.reshape(B, W * M), min(k, W * M))
    chosen = jnp.sort(chosen, axis=-1)[..., None]  # so that the first of equal scores stays the first
    columns = (chosen % M) * block + jnp.arange(block, dtype=chosen.dtype)[None, None]
    return jnp.broadcast_to(chosen // M, columns.shape), columns


def _elements(scores: Array, beams: Array, columns: Array) -> Array:
    """Gather scores [B, W, V] at beams and columns [B, X, Y]; columns outside the vocabulary give arbitrary values."""
    B, W, V = scores.shape
    index = (beams * V + jnp.minimum(columns, V - 1)).reshape(B, -1)
    found = jnp.take_along_axis(scores.reshape(B, W * V), index, axis=1, mode="promise_in_bounds")
    return found.reshape(columns.shape)


def _pick(x: Array, place: Array) -> Array:
    return jnp.take_along_axis(x.reshape(len(x), -1), place, axis=1, mode="promise_in_bounds")


def _block_maxima(scores: Array, block: int) -> Array:
    """[B, W, V] -> [B, W, ceil(V / block)]. Sliced rather than padded, because padding would copy all scores."""
    B, W, V = scores.shape
    whole = V // block * block
    maxima = scores[..., :whole].reshape(B, W, whole // block, block).max(-1)
    if whole == V:
        return maxima
    return jnp.concatenate([maxima, scores[..., whole:].max(-1, keepdims=True)], axis=-1)
