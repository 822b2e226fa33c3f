"""Attention of recurrent states over a memory (additive, dot, general). Kinds differ only in how they compute scores.

    a_t = softmax_j score(s_t, h_j);   c_t = sum_j a_tj v_j

for queries s_t [U] and a memory of keys h_j and values v_j [E]. The part that only depends on the memory is computed
once and shared by the W hypotheses of a sentence.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from convs2s_jax.nn import affine, struct
from convs2s_jax.nn.affine import Affine, linear, matmul
from convs2s_jax.nn.gradient import add_broadcast, loop_invariant
from convs2s_jax.nn.types import Array, Key, accumulation_dtype

ParamsT = TypeVar("ParamsT")
AttentionName = Literal["additive", "dot", "general", "none"]
CHUNK = 8
"""Queries of a sentence scored at once, since tanh(W_s s + W_h h) needs U numbers per query and source position."""


@struct.dataclass
class Additive:
    """Parameters of additive attention.

    Attributes:
      query: W_s and b, [U -> U].
      key: W_h [E, U].
      score: v [U].
    """

    query: Affine
    key: Array
    score: Array


@struct.dataclass
class General:
    """Parameters of Luong's general attention.

    Attributes:
      key: W [E, U].
    """

    key: Array


AttentionParams = Additive | General | None


class Scoring(NamedTuple, Generic[ParamsT]):
    """A kind of attention.

    Attributes:
      init: (key, U, E) -> params, for queries of U channels and a memory of E.
      keys: (params, keys [B, S, E]) -> [B, S, X], the part of the score that only depends on the memory.
      score: (params, queries [B, Q, U], keys [B, S, X]) -> [B, Q, S] in float32 or better. None for no attention, where
        the context is the memory's summary and all weights are zero.
    """

    init: Callable[[Key, int, int], ParamsT]
    keys: Callable[[ParamsT, Array], Array]
    score: Callable[[ParamsT, Array, Array], Array] | None


def additive_init(key: Key, units: int, dim: int) -> Additive:
    """Initialise every map ~ N(0, sqrt(1 / inputs))."""
    query_key, key_key, score_key = jax.random.split(key, 3)
    return Additive(
        query=affine.init(query_key, units, units),
        key=affine.init(key_key, dim, units).w,
        score=affine.init(score_key, units, 1).w[:, 0],
    )


def general_init(key: Key, units: int, dim: int) -> General:
    """Initialise W ~ N(0, sqrt(1 / E))."""
    return General(key=affine.init(key, dim, units).w)


def no_init(_key: Key, _units: int, _dim: int) -> None:
    """Return None, since there are no parameters."""


def additive(params: Additive, queries: Array, keys: Array) -> Array:
    """Compute score = v . tanh(W_s s + b + W_h h) (Bahdanau et al. 2015, section 3.1 and appendix A.1.2).

    Queries are processed in chunks and the backward pass recomputes the scores, so that the U numbers per pair of
    positions are never stored.
    """
    mapped = jnp.swapaxes(linear(params.query, queries), 0, 1)
    read = loop_invariant((keys, params.score))

    @partial(jax.checkpoint, prevent_cse=False)  # it runs inside a loop wherever that matters
    def one(query: Array) -> Array:
        keys, score = read()
        hidden = jnp.tanh(add_broadcast(keys, query[:, None]))
        return jnp.einsum("BSU,U->BS", hidden, score, preferred_element_type=accumulation_dtype(keys.dtype))

    if len(mapped) <= CHUNK:
        return jax.vmap(one, out_axes=1)(mapped)
    return jnp.swapaxes(jax.lax.map(one, mapped, batch_size=CHUNK), 0, 1)


def product(_params: General | None, queries: Array, keys: Array) -> Array:
    """Compute score = s . h (Luong et al. 2015, section 3.1): "general" with mapped keys, "dot" with unmapped keys."""
    return jnp.einsum(
        "BQX,BSX->BQS", queries.astype(keys.dtype), keys, preferred_element_type=accumulation_dtype(keys.dtype)
    )


def map_keys(params: Additive | General, keys: Array) -> Array:
    """Compute W h, [B, S, U]."""
    return matmul(keys, params.key)


def keep_keys(_params: None, keys: Array) -> Array:
    """Return the keys unchanged."""
    return keys


ATTENTIONS: dict[str, Scoring[Any]] = {
    "additive": Scoring(init=additive_init, keys=map_keys, score=additive),
    "dot": Scoring(init=no_init, keys=keep_keys, score=product),
    "general": Scoring(init=general_init, keys=map_keys, score=product),
    "none": Scoring(init=no_init, keys=keep_keys, score=None),
}
