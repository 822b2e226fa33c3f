"""Multi-step attention (section 3.3): every decoder layer attends to the source.

`models.convs2s_fast` applies the same maps to the source instead of the target, once per sentence.
"""

import jax
import jax.numpy as jnp

from convs2s_jax.nn import affine, struct
from convs2s_jax.nn.affine import Affine, linear
from convs2s_jax.nn.sharding import replicate_channels, shard_channels
from convs2s_jax.nn.types import SQRT_HALF, Array, Key, accumulation_dtype


@struct.dataclass
class MultiStepAttention:
    """Parameters of the attention of one layer.

    Attributes:
      query: [C -> E], W_d and b_d of equation 1.
      context: [E -> C], W_c and b_c, which map the context vector to the channels of the layer.
    """

    query: Affine
    context: Affine


def init(key: Key, channels: int, dim: int) -> MultiStepAttention:
    """Initialise maps between C channels of a decoder layer and E of the embeddings, w ~ N(0, sqrt(1 / inputs))."""
    query_key, context_key = jax.random.split(key)
    return MultiStepAttention(
        query=affine.init(query_key, channels, dim), context=affine.init(context_key, dim, channels)
    )


def attend(
    params: MultiStepAttention, h: Array, g: Array, keys: Array, values: Array, mask: Array
) -> tuple[Array, Array]:
    """Attend to the source (equations 1 and 2):  d = W_d h + b_d + g;  a = softmax(d . z);  c = sum_j a_j (z_j + e_j).

    Scaled as in fairseq: d is multiplied by sqrt(0.5), and c by sqrt(m), where m is the real source length including
    the end symbol (m * sqrt(1/m) in the paper, section 3.4). Then c is mapped to the channels of the layer, h is added,
    and the sum is multiplied by sqrt(0.5).

    Args:
      params: parameters.
      h: [N, T, C], output of the layer's GLU. N = B * W, the W hypotheses of a sentence adjacent.
      g: [N, T, E], embedded target tokens.
      keys: z [B, S, E].
      values: [B, S, E], with embeddings already added.
      mask: [B, S], True at real source positions.

    Returns:
      [N, T, C] and the weights a [N, T, S] in float32 or better, whose rows sum to one over real positions.
    """
    d = (replicate_channels(linear(params.query, h)) + g) * SQRT_HALF
    scores_BQS = jnp.einsum("BQE,BSE->BQS", queries(d, mask), keys, preferred_element_type=accumulation_dtype(d.dtype))
    c, a = scaled_context(scores_BQS, values, mask)
    c, a = replicate_channels(c.reshape(g.shape)), a.reshape(*g.shape[:2], -1)
    return shard_channels((linear(params.context, c) + h) * SQRT_HALF), a


def queries(x: Array, mask: Array) -> Array:
    """Reshape [N, T, X] to [B, Q, X], the Q = W * T queries of each sentence."""
    return x.reshape(len(mask), -1, x.shape[-1])


def scaled_context(scores: Array, values: Array, mask: Array) -> tuple[Array, Array]:
    """Compute a = softmax(scores) and c = sqrt(m) sum_j a_j values_j, m the number of real source positions.

    Args:
      scores: [B, Q, S] in float32 or better.
      values: [B, S, X].
      mask: [B, S].

    Returns:
      c [B, Q, X] in the dtype of the values, and a [B, Q, S].
    """
    c, a = context(scores, values, mask)
    m = jnp.sum(mask, axis=1).astype(values.dtype)
    return c * jnp.sqrt(m)[:, None, None], a


def context(scores: Array, values: Array, mask: Array) -> tuple[Array, Array]:
    """Compute a = softmax(scores) and c = sum_j a_j values_j. Arguments and results are as in `scaled_context`."""
    a = softmax(scores, mask[:, None])
    return jnp.einsum("BQS,BSX->BQX", a.astype(values.dtype), values), a


def softmax(scores: Array, mask: Array) -> Array:
    """Softmax over the last axis where `mask` is True, exactly zero elsewhere; uniform, not NaN, if it is all False."""
    return jax.nn.softmax(jnp.where(mask, scores, jnp.finfo(scores.dtype).min), axis=-1)
