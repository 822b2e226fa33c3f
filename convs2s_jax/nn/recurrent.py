"""Recurrent cells (GRU, LSTM), their loop over time, and the scores of their attention.

A kind of cell is a record of its gates, state and equations.

Every cell computes two products, x = W x_t + b of its input and s = U h_{t-1} + b' of the previous state, each with all
G gates concatenated. W x_t + b does not depend on the state, so one product outside the loop covers all positions.

Attention of recurrent states over a memory (additive, dot, general) is  a_t = softmax_j score(s_t, h_j),
c_t = sum_j a_tj v_j  for queries s_t [U] and a memory of keys h_j and values v_j [E]. Kinds differ only in how they
compute scores. The part that only depends on the memory is computed once, and shared by the W hypotheses of a sentence.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from convs2s_jax.nn import affine, struct
from convs2s_jax.nn.affine import Affine, add_bias, linear, matmul
from convs2s_jax.nn.gradient import add_broadcast
from convs2s_jax.nn.loops import loop_invariant, scan
from convs2s_jax.nn.types import Array, Key, accumulation_dtype

CellName = Literal["gru", "lstm"]
CellState = tuple[Array, ...]
"""The state of a cell: (h,) or (h, c), each [N, U] in float32 or better, since it accumulates small changes."""


@struct.dataclass
class Cell:
    """Kernels of one cell, with gates concatenated as in cuDNN.

    Attributes:
      input: W and b, [C -> G U].
      state: U and b', [U -> G U].
    """

    input: Affine
    state: Affine


class CellKind(NamedTuple):
    """A kind of cell.

    Attributes:
      gates: number of gates G.
      parts: number of arrays in its state.
      step: (x [N, G U], s [N, G U], state) -> the next state, in float32 or better.
      biases: initial biases of `Cell.input`, one number per gate.
    """

    gates: int
    parts: int
    step: Callable[[Array, Array, CellState], CellState]
    biases: tuple[float, ...]


def gru(x: Array, s: Array, state: CellState) -> CellState:
    """Gated recurrent unit (Cho et al. 2014, equations 5 to 8), reset after the product; gates in the order r, z, n.

    r = sigmoid(x_r + s_r);  z = sigmoid(x_z + s_z);  n = tanh(x_n + r * s_n);  h' = (1 - z) * n + z * h

    Cho et al. reset before the product, U (r * h), which therefore has to wait for r. This form is the one of cuDNN,
    PyTorch and the first version of their paper.
    """
    (h,) = state
    x_r, x_z, x_n = jnp.split(x, 3, axis=-1)
    s_r, s_z, s_n = jnp.split(s, 3, axis=-1)
    r, z = jax.nn.sigmoid(x_r + s_r), jax.nn.sigmoid(x_z + s_z)
    n = jnp.tanh(x_n + r * s_n)
    return (n + z * (h - n),)


def lstm(x: Array, s: Array, state: CellState) -> CellState:
    """Long short-term memory (Hochreiter and Schmidhuber 1997) with a forget gate (Gers et al. 2000).

    Gates are in the order i, f, g, o.

    c' = sigmoid(f) * c + sigmoid(i) * tanh(g);  h' = sigmoid(o) * tanh(c')  where  [i f g o] = x + s
    """
    _, c = state
    i, f, g, o = jnp.split(x + s, 4, axis=-1)
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


CELLS: dict[str, CellKind] = {
    "gru": CellKind(gates=3, parts=1, step=gru, biases=(0.0, 0.0, 0.0)),
    "lstm": CellKind(gates=4, parts=2, step=lstm, biases=(0.0, 1.0, 0.0, 0.0)),
}
"""The forget gate of an LSTM is initialised with a bias of 1, so that it remembers (Gers et al. 2000; Jozefowicz et al.
2015)."""


def init(key: Key, kind: CellKind, inputs: int, units: int, *, keep: float = 1.0) -> Cell:
    """Initialise a cell: W ~ N(0, sqrt(keep / C)), an orthogonal U per gate, biases from the kind.

    (Bahdanau et al. 2015, appendix B.1, have orthogonal U.)

    Args:
      key: random key for both kernels.
      kind: an entry of `CELLS`.
      inputs: number of inputs C.
      units: number of units U.
      keep: probability that dropout keeps an input.
    """
    input_key, state_key = jax.random.split(key)
    w = affine.init(input_key, inputs, kind.gates * units, keep=keep).w
    gates = _orthogonal(state_key, kind.gates, units)
    return Cell(
        input=Affine(w=w, b=jnp.repeat(jnp.asarray(kind.biases), units)),
        state=Affine(w=jnp.concatenate(list(gates), axis=1), b=jnp.zeros(kind.gates * units)),
    )


def _orthogonal(key: Key, count: int, units: int) -> Array:
    """Sample uniform orthogonal matrices [count, U, U] (Mezzadri 2007), the same as `jax.random.orthogonal`.

    They are factorised one after another: jaxlib's kernel for several matrices waits for threads of the pool that it
    runs in, so several of these kernels may wait forever on CPUs (jax 0.10.2; benchmarks/upstream/batched_qr.py).
    """
    qr = jax.custom_batching.sequential_vmap(lambda x: tuple(jnp.linalg.qr(x)))
    q, r = jax.vmap(qr)(jax.random.normal(key, (count, units, units)))
    return q * jnp.sign(jnp.diagonal(r, axis1=-2, axis2=-1))[:, None, :]


def zeros(kind: CellKind, rows: int, units: int, dtype: Any) -> CellState:
    """Return the zero state before the first position, for kernels in `dtype`."""
    return (jnp.zeros((rows, units), accumulation_dtype(dtype)),) * kind.parts


def run(
    kind: CellKind, params: Cell, state: CellState, x: Array, mask: Array, *, reverse: bool = False
) -> tuple[Array, CellState]:
    """Run a cell over all positions. A masked position keeps the state, and its output is zero.

    Args:
      kind: an entry of `CELLS`.
      params: kernels.
      state: state before the first position, or after the last one if `reverse` is True.
      x: [B, T, C].
      mask: [B, T], True at real positions.
      reverse: run from the last position to the first.

    Returns:
      h at each position [B, T, U], in the dtype of the kernels, and the final state.
    """
    dtype = params.input.w.dtype

    def body(params: Affine, state: CellState, item: tuple[Array, Array]) -> tuple[CellState, Array]:
        state = step(kind, params, state, *item)
        return state, output(state, item[1], dtype)

    state, outputs = scan(body, params.state, state, (products(params.input, x), mask.T), reverse=reverse)
    return jnp.swapaxes(outputs, 0, 1), state


def products(params: Affine, x: Array) -> Array:
    """Compute W x_t + b for all positions, [B, T, C] -> [T, B, D], in the dtype of w. Time is first, for the loop."""
    return jnp.swapaxes(linear(params, x), 0, 1)


def step(kind: CellKind, params: Affine, state: CellState, x: Array, mask: Array) -> CellState:
    """Advance one position. x [N, G U] is W x_t + b; rows where mask [N] is False keep their state."""
    dtype = state[0].dtype
    s = jnp.einsum("NU,UD->ND", state[0].astype(params.w.dtype), params.w, preferred_element_type=dtype)
    new = kind.step(x.astype(dtype), add_bias(s, params.b), state)
    return tuple(jnp.where(mask[:, None], after, before) for before, after in zip(state, new, strict=True))


def output(state: CellState, mask: Array, dtype: Any) -> Array:
    """Return h [N, U] for the layers above, zero where mask [N] is False."""
    return jnp.where(mask[:, None], state[0], jnp.zeros_like(state[0])).astype(dtype)


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


class Scoring(NamedTuple):
    """A kind of attention.

    Attributes:
      init: (key, U, E) -> params, for queries of U channels and a memory of E; None if there are none.
      keys: (params, keys [B, S, E]) -> [B, S, X], the part of the score that only depends on the memory.
      score: (params, queries [B, Q, U], keys [B, S, X]) -> [B, Q, S] in float32 or better. None for no attention, where
        the context is the memory's summary and all weights are zero.
    """

    init: Callable[[Key, int, int], AttentionParams] = lambda *_: None
    keys: Callable[[Any, Array], Array] = lambda _, keys: keys
    score: Callable[[Any, Array, Array], Array] | None = None


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


ATTENTIONS: dict[str, Scoring] = {
    "additive": Scoring(init=additive_init, keys=map_keys, score=additive),
    "dot": Scoring(score=product),
    "general": Scoring(init=general_init, keys=map_keys, score=product),
    "none": Scoring(),
}
