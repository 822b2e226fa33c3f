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
    """What an attention reads, so that scores are  x . keys + offset  and what is fetched is  sum_j a_j values_j.

    keys: [B, S, X]; offset: [B, S] or None for 0; values: [B, S, Y].
    """

    keys: Array
    offset: Array | None
    values: Array


def prepare(params: Attention, keys: Array, values: Array) -> Source:
    """Move the maps of equations 1 and 2 from the target's side to the source's.

    (W_d h + b_d + g) . z = [h; g] . [W_d^T z; z] + b_d . z  and  W_c sum_j a_j v_j = sum_j a_j (W_c v_j), so that a
    sentence is mapped once and not each hypothesis at each step: S products of C * E in place of W * T.

    Args:
      params: maps.
      keys, values: [B, S, E], as `attend` takes them.
    """
    w, b = params.query.w, params.query.b
    mapped = jnp.einsum("BSE,CE->BSC", keys.astype(w.dtype), w)
    offset = jnp.einsum("BSE,E->BS", keys.astype(w.dtype), b.astype(w.dtype), preferred_element_type=wide(w.dtype))
    both = jnp.concatenate([mapped, keys.astype(w.dtype)], axis=-1) * SQRT_HALF
    fetched = jnp.einsum("BSE,EC->BSC", values.astype(w.dtype), params.context.w)
    return Source(keys=both, offset=offset * SQRT_HALF, values=fetched)


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
    c, a = fetch(Source(keys=keys, offset=None, values=values), d, mask)
    return (linear(params.context, c) + h) * SQRT_HALF, a


def attend_prepared(params: Attention, source: Source, h: Array, g: Array, mask: Array) -> tuple[Array, Array]:
    """`attend` with a source from `prepare`."""
    c, a = fetch(source, jnp.concatenate([h, g], axis=-1), mask)
    return (c + bias(params.context.b, 3) + h) * SQRT_HALF, a


def fetch(source: Source, d: Array, mask: Array) -> tuple[Array, Array]:
    """a = softmax(d . keys + offset);  c = sqrt(m) sum_j a_j values_j.

    Args:
      source: of B sentences.
      d: [N, T, X], N = B * W.
      mask: [B, S].

    Returns:
      c [N, T, Y] and a [N, T, S] in float32 or better.
    """
    B, S, X = source.keys.shape
    N, T = d.shape[:2]
    scores_BQS = jnp.einsum("BQX,BSX->BQS", d.reshape(B, -1, X), source.keys, preferred_element_type=wide(d.dtype))
    if source.offset is not None:
        scores_BQS = scores_BQS + source.offset[:, None].astype(scores_BQS.dtype)
    a_BQS = softmax(scores_BQS, mask[:, None])
    m = jnp.sum(mask, axis=1).astype(d.dtype)
    c = jnp.einsum("BQS,BSY->BQY", a_BQS.astype(d.dtype), source.values) * jnp.sqrt(m)[:, None, None]
    return c.reshape(N, T, -1), a_BQS.reshape(N, T, S)


def softmax(scores: Array, mask: Array) -> Array:
    """Softmax over the last axis where `mask` holds; exactly zero elsewhere; uniform, not NaN, if it holds nowhere."""
    return jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min), axis=-1)
