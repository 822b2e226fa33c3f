"""Sample translations instead of searching for the best (ancestral sampling, top-k, nucleus)."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from convs2s_jax.core.tokens import BOS
from convs2s_jax.search.finished import FAIRSEQ
from convs2s_jax.search.numbers import Numbers
from convs2s_jax.search.request import Request
from convs2s_jax.search.strategies.base import Candidates, Strategy, View, no_phrases
from convs2s_jax.search.structure import Structure


def choose(view: View) -> Candidates:
    """Choose a symbol for each of the H = W samples of a sentence (R = B): that of the largest score + Gumbel noise.

    The noise depends on the sentence's key, the step, and the sample's place among those that have not ended. It does
    not depend on the batch or its shape. The begin symbol is never drawn, as in fairseq, which leaves out the first two
    symbols. The others share its probability in proportion to theirs.

    Returns:
      The H samples, then H candidates with score -inf to fill up the 2H.
    """
    keys = view.request.keys
    assert keys is not None  # see `check`
    scores = view.scores(lambda ruled, _free: ruled.at[..., BOS].set(-jnp.inf))
    R, H, V = scores.shape
    noise = jax.vmap(lambda key: jax.random.gumbel(jax.random.fold_in(key, view.step), (H, V), scores.dtype))(keys)
    tokens = jnp.argmax(keep(view.structure, view.numbers, scores) + noise, axis=-1).astype(jnp.int32)
    new = view.totals + jnp.take_along_axis(scores, tokens[..., None], axis=-1)[..., 0]
    own = jnp.broadcast_to(jnp.arange(H, dtype=jnp.int32), (R, H))
    dead = jnp.full((R, H), -jnp.inf, new.dtype)
    return Candidates(
        jnp.concatenate([new, dead], axis=-1),
        jnp.concatenate([own, own], axis=-1),
        jnp.concatenate([tokens, jnp.zeros_like(tokens)], axis=-1),
    )


def keep(structure: Structure, numbers: Numbers, scores: Array) -> Array:
    """Return scores [..., V] with -inf for the symbols that are not sampled from.

    Top-k keeps the k best symbols. After that, top-p keeps the smallest set of the best whose renormalised
    probabilities add up to p. Symbols as probable as the last one kept are kept too.
    """
    V, k = scores.shape[-1], structure.top_k
    if 0 < k < V:
        scores = jnp.where(scores >= lax.top_k(scores, k)[0][..., -1:], scores, -jnp.inf)
    if structure.nucleus:
        probabilities = -jnp.sort(-jax.nn.softmax(scores), axis=-1)
        before = jnp.cumsum(probabilities, axis=-1) - probabilities
        least = jnp.min(jnp.where(before < numbers.top_p, probabilities, jnp.inf), axis=-1, keepdims=True)
        scores = jnp.where(jax.nn.softmax(scores) >= least, scores, -jnp.inf)
    return scores


def check(request: Request) -> None:
    """Reject a request without keys, or with phrases."""
    if request.keys is None:
        raise ValueError("sampling needs a random key for each sentence: pass keys in the request")
    no_phrases(request)


SAMPLED = Strategy(choose, check=check, stop=FAIRSEQ, starts_as_one=False)
