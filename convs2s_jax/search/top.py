"""The best continuations of a beam, without sorting the vocabulary."""

import jax.numpy as jnp
from jax import Array, lax

BLOCK = 128


def top(scores: Array, k: int, *, block: int = BLOCK) -> tuple[Array, Array, Array]:
    """The k best of the W * V continuations of each sentence, best first; the lower index first where scores are equal.

    The vocabulary is cut into blocks; the k best elements lie in the k blocks with the largest maxima. So one
    vectorised maximum over everything leaves k * block elements to select from. It is exactly
    `lax.top_k(scores.reshape(B, W * V), k)`, in less than half of its time on a CPU at V = 10,000.

    Args:
      scores: [B, W, V] float32.
      k: at most W * V.
      block: size of the blocks; vocabularies of fewer than four are selected from at once.

    Returns:
      values [B, k], beams [B, k] int32 in 0..W-1, tokens [B, k] int32 in 0..V-1.
    """
    B, W, V = scores.shape
    if not 1 <= k <= W * V:
        raise ValueError(f"k is {k}, but there are {W} * {V} continuations")
    flat = scores.reshape(B, W * V)
    if 4 * block > V:
        values, index = lax.top_k(flat, k)
        return values, index // V, index % V
    maxima = _block_maxima(scores, block)
    M = maxima.shape[-1]
    _, chosen = lax.top_k(maxima.reshape(B, W * M), min(k, W * M))
    chosen = jnp.sort(chosen, axis=-1)  # so that the first of equal scores stays the first
    column = (chosen % M)[..., None] * block + jnp.arange(block, dtype=chosen.dtype)[None, None]
    index = ((chosen // M)[..., None] * V + jnp.minimum(column, V - 1)).reshape(B, -1)
    elements = jnp.take_along_axis(flat, index, axis=1, mode="promise_in_bounds")
    elements = jnp.where(column.reshape(B, -1) < V, elements, -jnp.inf)
    values, place = lax.top_k(elements, k)
    index = jnp.take_along_axis(index, place, axis=1, mode="promise_in_bounds")
    return values, index // V, index % V


def _block_maxima(scores: Array, block: int) -> Array:
    """[B, W, V] -> [B, W, ceil(V / block)]. Cut, not padded: padding would cost a copy of all scores."""
    B, W, V = scores.shape
    whole = V // block * block
    maxima = scores[..., :whole].reshape(B, W, whole // block, block).max(-1)
    if whole == V:
        return maxima
    return jnp.concatenate([maxima, scores[..., whole:].max(-1, keepdims=True)], axis=-1)
