"""Multi-step attention (section 3.3): each decoder layer asks the source anew."""

import flax.struct
import jax
import jax.numpy as jnp

from convs2s_jax.nn import affine
from convs2s_jax.nn.affine import Affine, bias, linear
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


@flax.struct.dataclass
class Source:
    """What an attention reads once its maps are on the source's side (`prepare`).

    Scores are  h . keys_j + g . z_j + offset_j,  and what is fetched is  sum_j a_j values_j.  In keys and z
    source positions are the last axis, so that the small product of a step reads them as they lie.

    keys: [B, C, S]; z: [B, E, S], the same for all layers; offset: [B, S]; values: [B, S, C].
    """

    keys: Array
    z: Array
    offset: Array
    values: Array


def prepare(params: Attention, keys: Array, values: Array) -> Source:
    """Move the maps of equations 1 and 2 from the target's side to the source's.

    (W_d h + b_d + g) . z = h . W_d^T z + g . z + b_d . z  and  W_c sum_j a_j v_j = sum_j a_j (W_c v_j), so that a
    sentence is mapped once and not each hypothesis at each step: S products of C * E in place of W * T.

    Args:
      params: maps.
      keys, values: [B, S, E], as `attend` takes them.
    """
    w, b = params.query.w, params.query.b
    z = jnp.swapaxes(keys, 1, 2).astype(w.dtype) * SQRT_HALF
    mapped = jnp.einsum("CE,BES->BCS", w, z)
    offset = jnp.einsum("E,BES->BS", b.astype(w.dtype), z, preferred_element_type=wide(w.dtype))
    fetched = jnp.einsum("BSE,EC->BSC", values.astype(w.dtype), params.context.w)
    return Source(keys=mapped, z=z, offset=offset, values=fetched)


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
    scores_BQS = jnp.einsum("BQE,BSE->BQS", _queries(d, mask), keys, preferred_element_type=wide(d.dtype))
    c, a = fetch(scores_BQS, values, mask)
    c, a = c.reshape(g.shape), a.reshape(*g.shape[:2], -1)
    return (linear(params.context, c) + h) * SQRT_HALF, a


def attend_prepared(params: Attention, source: Source, h: Array, g: Array, mask: Array) -> tuple[Array, Array]:
    """`attend` with a source from `prepare`."""
    dtype = wide(h.dtype)
    scores_BQS = jnp.einsum("BQC,BCS->BQS", _queries(h, mask), source.keys, preferred_element_type=dtype)
    scores_BQS += jnp.einsum("BQE,BES->BQS", _queries(g, mask), source.z, preferred_element_type=dtype)
    c, a = fetch(scores_BQS + source.offset[:, None], source.values, mask)
    return (c.reshape(h.shape) + bias(params.context.b, 3) + h) * SQRT_HALF, a.reshape(*h.shape[:2], -1)


def _queries(x: Array, mask: Array) -> Array:
    """[N, T, X] -> [B, Q, X]: the Q = W * T queries of each sentence."""
    return x.reshape(len(mask), -1, x.shape[-1])


def fetch(scores: Array, values: Array, mask: Array) -> tuple[Array, Array]:
    """a = softmax(scores);  c = sqrt(m) sum_j a_j values_j.

    Args:
      scores: [B, Q, S] in float32 or better.
      values: [B, S, Y].
      mask: [B, S].

    Returns:
      c [B, Q, Y] in the dtype of the values, and a [B, Q, S].
    """
    c, a = mix(scores, values, mask)
    m = jnp.sum(mask, axis=1).astype(values.dtype)
    return c * jnp.sqrt(m)[:, None, None], a


def mix(scores: Array, values: Array, mask: Array) -> tuple[Array, Array]:
    """a = softmax(scores);  c = sum_j a_j values_j; arguments and results as of `fetch`."""
    a = softmax(scores, mask[:, None])
    return jnp.einsum("BQS,BSY->BQY", a.astype(values.dtype), values), a


def softmax(scores: Array, mask: Array) -> Array:
    """Softmax over the last axis where `mask` holds; exactly zero elsewhere; uniform, not NaN, if it holds nowhere."""
    return jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min), axis=-1)
