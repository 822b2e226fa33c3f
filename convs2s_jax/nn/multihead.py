"""Multi-head attention over the source (Vaswani et al. 2017, section 3.2.2)."""

import jax
import jax.numpy as jnp

from convs2s_jax.nn import affine, struct
from convs2s_jax.nn.affine import Affine, linear
from convs2s_jax.nn.attention import softmax
from convs2s_jax.nn.dropout import dropout
from convs2s_jax.nn.types import Array, Key, accumulation_dtype


@struct.dataclass
class Multihead:
    """Parameters of one attention: four maps [E -> E]. Each head uses a block of E / H channels.

    Attributes:
      query: maps target states to queries.
      key: maps the encoder's keys to the keys of the heads.
      value: maps the encoder's values to the values of the heads.
      out: maps the concatenated heads to the output.
    """

    query: Affine
    key: Affine
    value: Affine
    out: Affine


@struct.dataclass
class SourceHeads:
    """Keys and values of a source, mapped for the heads of one attention.

    Attributes:
      keys: [B, H, E / H, S].
      values: [B, H, S, E / H].
    """

    keys: Array
    values: Array


def init(key: Key, dim: int) -> Multihead:
    """Initialise maps as in fairseq: Xavier uniform, with gain sqrt(1/2) for queries, keys and values; zero biases."""
    keys = jax.random.split(key, 4)
    query, key_map, value = (affine.xavier(k, dim, dim, gain=0.5**0.5) for k in keys[:3])
    return Multihead(query=query, key=key_map, value=value, out=affine.xavier(keys[3], dim, dim))


def map_source(params: Multihead, heads: int, keys: Array, values: Array) -> SourceHeads:
    """Map the encoder's keys and values, both [B, S, E], once for all queries."""
    if keys.shape[-1] % heads:
        raise ValueError(f"{heads} heads cannot evenly split {keys.shape[-1]} channels: use a divisor")
    shape = (*keys.shape[:2], heads, -1)
    return SourceHeads(
        keys=jnp.transpose(linear(params.key, keys).reshape(shape), (0, 2, 3, 1)),
        values=jnp.transpose(linear(params.value, values).reshape(shape), (0, 2, 1, 3)),
    )


def attend(
    params: Multihead, source: SourceHeads, x: Array, mask: Array, *, rate: float = 0.0, key: Key | None = None
) -> tuple[Array, Array]:
    """Compute a = softmax(q k / sqrt(E / H)) for each head, and y = W_o [a v of all heads] + b_o.

    Args:
      params: parameters.
      source: as `map_source` returns it.
      x: [N, T, E]; N = B * W, the W hypotheses of a sentence adjacent.
      mask: [B, S], True at real source positions.
      rate: dropout rate of the attention weights.
      key: random key for dropout; None for no dropout.

    Returns:
      [N, T, E] and the mean of the heads' weights [N, T, S] in float32 or better, before dropout.
    """
    N, T, E = x.shape
    B, H, D, S = source.keys.shape
    q = jnp.moveaxis(linear(params.query, x).reshape(B, N // B, T, H, D) * D**-0.5, 3, 1)
    q = q.reshape(B, H, N // B * T, D)  # one axis: XLA on CPU has no bfloat16 product with separate W and T
    scores = jnp.einsum("BHQD,BHDS->BHQS", q, source.keys, preferred_element_type=accumulation_dtype(q.dtype))
    scores = jnp.swapaxes(scores.reshape(B, H, N // B, T, S), 1, 2)
    a = softmax(scores, mask[:, None, None, None]).reshape(N, H, T, S)
    weights = dropout(a, rate, key).astype(source.values.dtype).reshape(B, N // B, H, T, S)
    weights = jnp.swapaxes(weights, 1, 2).reshape(B, H, N // B * T, S)
    fetched = jnp.moveaxis((weights @ source.values).reshape(B, H, N // B, T, D), 1, 3)
    return linear(params.out, fetched.reshape(N, T, E)), jnp.mean(a, axis=1)
