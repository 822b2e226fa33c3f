"""Drawing translations instead of searching for the best (ancestral sampling, top-k, nucleus)."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from convs2s_jax.search.config import SearchConfig


def draw(cfg: SearchConfig, scores: Array, totals: Array, keys: Array, step: Array) -> tuple[Array, Array, Array]:
    """One symbol for each of the W samples of a sentence, by the largest of score + Gumbel noise.

    The noise is a function of the sentence's key, the step and the sample's place among those that have not ended:
    neither the batch nor its shape has a part in it.

    Args:
      cfg: the options.
      scores: [B, W, V], log-probabilities, -inf where forbidden.
      totals: [B, W], cumulative; -inf for samples that have ended.
      keys: [B] random keys.
      step: [].

    Returns:
      totals, hypotheses and tokens, [B, 2W] each: the samples, then as many that are dead.
    """
    B, W, V = scores.shape
    noise = jax.vmap(lambda key: jax.random.gumbel(jax.random.fold_in(key, step), (W, V)))(keys)
    tokens = jnp.argmax(candidates(cfg, scores) + noise, axis=-1).astype(jnp.int32)
    new = totals + jnp.take_along_axis(scores, tokens[..., None], axis=-1)[..., 0]
    own = jnp.broadcast_to(jnp.arange(W, dtype=jnp.int32), (B, W))
    dead = jnp.full((B, W), -jnp.inf, new.dtype)
    return (
        jnp.concatenate([new, dead], axis=-1),
        jnp.concatenate([own, own], axis=-1),
        jnp.concatenate([tokens, jnp.zeros_like(tokens)], axis=-1),
    )


def candidates(cfg: SearchConfig, scores: Array) -> Array:
    """Scores [..., V] with -inf for the symbols that are not sampled from.

    top-k keeps the k best; top-p the smallest set of the best whose probabilities, of what top-k left, add up to p.
    Symbols as probable as the last one kept are kept too.
    """
    V = scores.shape[-1]
    if 0 < cfg.top_k < V:
        scores = jnp.where(scores >= lax.top_k(scores, cfg.top_k)[0][..., -1:], scores, -jnp.inf)
    if cfg.top_p < 1:
        probabilities = -jnp.sort(-jax.nn.softmax(scores), axis=-1)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        least = jnp.min(jnp.where(before < cfg.top_p, probabilities, jnp.inf), axis=-1, keepdims=True)
        scores = jnp.where(jax.nn.softmax(scores) >= least, scores, -jnp.inf)
    return scores
