"""Multi-head attention over the source (Vaswani et al. 2017, section 3.2.2)."""

import flax.struct
import jax
import jax.numpy as jnp

from convs2s_jax.nn import affine
from convs2s_jax.nn.affine import Affine, linear
from convs2s_jax.nn.attention import softmax
from convs2s_jax.nn.dropout import dropout
from convs2s_jax.nn.types import Array, Key, wide


@flax.struct.dataclass
class Multihead:
    """Parameters of one attention: maps [E -> E]. A head has a block of E / H channels.

    Attributes:
      query: of the target.
      key: of the source, for the scores.
      value: of the source, for what is read.
      out: of what all heads read.
    """

    query: Affine
    key: Affine
    value: Affine
    out: Affine


@flax.struct.dataclass
class SourceHeads:
    """A source, mapped for the heads of one attention.

    Attributes:
      keys: [B, H, E / H, S].
      values: [B, H, S, E / H].
    """

    keys: Array
    values: Array


def init(key: Key, dim: int) -> Multihead:
    """Fresh maps as fairseq's: uniform of Xavier, smaller by sqrt(1/2) for queries, keys and values; biases zero."""
    keys = jax.random.split(key, 4)
    query, key_map, value = (affine.xavier(k, dim, dim, gain=0.5**0.5) for k in keys[:3])
    return Multihead(query=query, key=key_map, value=value, out=affine.xavier(keys[3], dim, dim))


def map_source(params: Multihead, heads: int, keys: Array, values: Array) -> SourceHeads:
    """Map what the encoder left, [B, S, E] both, once for all queries."""
    shape = (*keys.shape[:2], heads, -1)
    return SourceHeads(
        keys=jnp.transpose(linear(params.key, keys).reshape(shape), (0, 2, 3, 1)),
        values=jnp.transpose(linear(params.value, values).reshape(shape), (0, 2, 1, 3)),
    )


def attend(
    params: Multihead, source: SourceHeads, x: Array, mask: Array, *, rate: float = 0.0, key: Key | None = None
) -> tuple[Array, Array]:
    """a = softmax(q k / sqrt(E / H)) of each head;  y = W_o [a v of all heads] + b_o.

    Args:
      params: maps.
      source: of `map_source`.
      x: [N, T, E]; N = B * W, the W hypotheses of a sentence side by side.
      mask: [B, S], True at real source positions.
      rate: dropout, on the weights.
      key: for dropout; None evaluates.

    Returns:
      [N, T, E] and the mean of the heads' weights [N, T, S] in float32, before dropout.
    """
    N, T, E = x.shape
    B, H, D, S = source.keys.shape
    q = linear(params.query, x).reshape(B, N // B, T, H, D) * D**-0.5
    scores = jnp.einsum("BWTHD,BHDS->BWHTS", q, source.keys, preferred_element_type=wide(q.dtype))
    a = softmax(scores, mask[:, None, None, None]).reshape(N, H, T, S)
    weights = dropout(a, rate, key).astype(source.values.dtype).reshape(B, N // B, H, T, S)
    fetched = jnp.einsum("BWHTS,BHSD->BWTHD", weights, source.values)
    return linear(params.out, fetched.reshape(N, T, E)), jnp.mean(a, axis=1)
