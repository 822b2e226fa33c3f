"""Multi-step attention (section 3.3): each decoder layer asks the source anew."""

import flax.struct
import jax
import jax.numpy as jnp

from convs2s_jax.nn import affine
from convs2s_jax.nn.affine import Affine, linear
from convs2s_jax.nn.types import SQRT_HALF, Array, Key, wide


@flax.struct.dataclass
class Attention:
    """Maps of one attention: `query` [C -> E] (W_d, b_d of equation 1) and `context` [E -> C]."""

    query: Affine
    context: Affine


def init(key: Key, channels: int, dim: int) -> Attention:
    """Maps between C channels of a decoder layer and E of the embeddings, w ~ N(0, sqrt(1 / inputs))."""
    query_key, context_key = jax.random.split(key)
    return Attention(query=affine.init(query_key, channels, dim), context=affine.init(context_key, dim, channels))


def attend(params: Attention, h: Array, g: Array, keys: Array, values: Array, mask: Array) -> tuple[Array, Array]:
    """Equations 1 and 2:  d = W_d h + b_d + g;  a = softmax(d . z);  c = sum_j a_j (z_j + e_j).

    As fairseq computes them: d is multiplied by sqrt(0.5), c by sqrt(m), m the real source length with its end symbol
    (m * sqrt(1/m) in the paper, section 3.4), and c is mapped back to the channels of the layer and averaged with h.

    Args:
      params: maps.
      h: [N, T, C], output of the layer's GLU; N = B * W, the W hypotheses of a sentence side by side.
      g: [N, T, E], embedded target tokens.
      keys: z [B, S, E].
      values: [B, S, E], embeddings already added.
      mask: [B, S], True at real source positions.

    Returns:
      [N, T, C] and the weights a [N, T, S] in float32, whose rows sum to one over real positions.
    """
    d = (linear(params.query, h) + g) * SQRT_HALF
    sentences, length, dim = keys.shape
    d = d.reshape(sentences, -1, dim)
    scores_BQS = jnp.einsum("BQE,BSE->BQS", d, keys, preferred_element_type=wide(d.dtype))
    a_BQS = softmax(scores_BQS, mask[:, None])
    m = jnp.sum(mask, axis=1).astype(d.dtype)
    c = jnp.einsum("BQS,BSE->BQE", a_BQS.astype(d.dtype), values) * jnp.sqrt(m)[:, None, None]
    c = c.reshape(*h.shape[:2], dim)
    return (linear(params.context, c) + h) * SQRT_HALF, a_BQS.reshape(*h.shape[:2], length)


def softmax(scores: Array, mask: Array) -> Array:
    """Softmax over the last axis where `mask` holds; exactly zero elsewhere; uniform, not NaN, if it holds nowhere."""
    return jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min), axis=-1)
