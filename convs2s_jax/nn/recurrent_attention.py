"""Attention of one recurrent state over a memory: how it scores source positions is a kind, the rest is shared.

    a_t = softmax_j score(s_t, h_j);   c_t = sum_j a_tj v_j

for queries s_t [U] and a memory of keys h_j and values v_j [E]. What concerns the memory alone is computed once
(`prepare`), and the W hypotheses of a sentence share it.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from convs2s_jax.nn import affine
from convs2s_jax.nn.affine import Affine, linear
from convs2s_jax.nn.attention import mix
from convs2s_jax.nn.types import Array, Key, wide

AttentionName = Literal["additive", "dot", "general", "none"]
CHUNK = 8
"""Queries of a sentence whose tanh(W_s s + W_h h), A numbers for each source position, is in memory at once."""


@flax.struct.dataclass
class Source:
    """A memory as one attention reads it.

    keys: [B, S, A], mapped where the kind says so; values: [B, S, E]; mask: [B, S]; summary: [B, E].
    """

    keys: Array
    values: Array
    mask: Array
    summary: Array


@flax.struct.dataclass
class Additive:
    """Maps W_s, b [U -> A] and W_h [E, A], and the vector v [A], `score`."""

    query: Affine
    key: Array
    score: Array


@flax.struct.dataclass
class General:
    """The map W [E, U]."""

    key: Array


class Scores(NamedTuple):
    """A kind of attention.

    init(key, units, dim) -> params, for queries of U = units and a memory of E = dim.
    keys(params, keys [B, S, E]) -> [B, S, A], the part of the score that depends on the memory alone.
    score(params, queries [B, Q, U], keys [B, S, A]) -> [B, Q, S] in float32 or better.
    Without `score` nothing is compared: the context is the memory's summary and all weights are zero.
    """

    init: Callable[[Key, int, int], Any]
    keys: Callable[[Any, Array], Array]
    score: Callable[[Any, Array, Array], Array] | None


def additive_init(key: Key, units: int, dim: int) -> Additive:
    """A = U; every map ~ N(0, sqrt(1 / inputs))."""
    query_key, key_key, score_key = jax.random.split(key, 3)
    return Additive(
        query=affine.init(query_key, units, units),
        key=affine.init(key_key, dim, units).w,
        score=affine.init(score_key, units, 1).w[:, 0],
    )


def general_init(key: Key, units: int, dim: int) -> General:
    """W ~ N(0, sqrt(1 / E))."""
    return General(key=affine.init(key, dim, units).w)


def no_init(key: Key, units: int, dim: int) -> None:
    """No parameters."""
    del key, units, dim


def additive(params: Additive, queries: Array, keys: Array) -> Array:
    """score = v . tanh(W_s s + b + W_h h) (Bahdanau et al. 2015, section 3.1 and appendix A.1.2).

    In chunks, and computed again for gradients: A numbers for each pair of positions are not kept.
    """
    mapped = jnp.swapaxes(linear(params.query, queries), 0, 1)

    @partial(jax.checkpoint, prevent_cse=False)  # it runs inside a loop wherever that counts
    def one(query: Array) -> Array:
        return jnp.einsum(
            "BSA,A->BS", jnp.tanh(query[:, None] + keys), params.score, preferred_element_type=wide(keys.dtype)
        )

    if len(mapped) <= CHUNK:
        return jax.vmap(one, out_axes=1)(mapped)
    return jnp.swapaxes(jax.lax.map(one, mapped, batch_size=CHUNK), 0, 1)


def product(params: Any, queries: Array, keys: Array) -> Array:
    """score = s . h, of keys that may be mapped (Luong et al. 2015, section 3.1: dot and general)."""
    del params
    return jnp.einsum("BQA,BSA->BQS", queries.astype(keys.dtype), keys, preferred_element_type=wide(keys.dtype))


def map_keys(params: Additive | General, keys: Array) -> Array:
    """W h, [B, S, A]."""
    return jnp.einsum("BSE,EA->BSA", keys.astype(params.key.dtype), params.key)


def keep_keys(params: None, keys: Array) -> Array:
    """Keys as they are."""
    del params
    return keys


ATTENTIONS: dict[str, Scores] = {
    "additive": Scores(init=additive_init, keys=map_keys, score=additive),
    "dot": Scores(init=no_init, keys=keep_keys, score=product),
    "general": Scores(init=general_init, keys=map_keys, score=product),
    "none": Scores(init=no_init, keys=keep_keys, score=None),
}


def prepare(kind: Scores, params: Any, keys: Array, values: Array, mask: Array, summary: Array) -> Source:
    """Map a memory once for all steps and hypotheses."""
    return Source(keys=kind.keys(params, keys), values=values, mask=mask, summary=summary)


def attend(kind: Scores, params: Any, source: Source, queries: Array) -> tuple[Array, Array]:
    """Contexts and weights of queries.

    Args:
      kind: of `ATTENTIONS`.
      params: of its `init`.
      source: of B sentences.
      queries: [N, T, U], N = B * W, the hypotheses of a sentence side by side.

    Returns:
      c [N, T, E], in the dtype of the values, and a [N, T, S] in float32 or better.
    """
    (N, T, _), (B, S, E) = queries.shape, source.values.shape
    dtype = wide(source.values.dtype)
    if kind.score is None:
        c = jnp.broadcast_to(source.summary[:, None], (B, N // B * T, E))
        a = jnp.zeros((B, N // B * T, S), dtype)
    else:
        scores = kind.score(params, queries.reshape(B, -1, queries.shape[-1]), source.keys)
        c, a = mix(scores, source.values, source.mask)
    return c.reshape(N, T, E), a.reshape(N, T, S)
