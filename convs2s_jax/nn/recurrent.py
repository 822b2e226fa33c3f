"""Recurrent cells (GRU, LSTM) and their loop over time. A kind of cell is a record of its gates, state and equations.

Every cell computes two products, x = W x_t + b of its input and s = U h_{t-1} + b' of the previous state, each with all
G gates concatenated. W x_t + b does not depend on the state, so one product outside the loop covers all positions.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from convs2s_jax.nn import affine, draws, struct
from convs2s_jax.nn.affine import Affine, add_bias, linear
from convs2s_jax.nn.gradient import scan
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


@jax.custom_batching.sequential_vmap
def _qr(x: Array) -> tuple[Array, Array]:
    """Factorise a matrix [U, U]; several ones, under `vmap`, one after another.

    jaxlib's kernel for several matrices waits for threads of the pool that it runs in, so several of these kernels may
    wait forever on CPUs (jax 0.10.2; benchmarks/upstream/batched_qr.py).
    """
    q, r = jnp.linalg.qr(x)
    return q, r


def _orthogonal(key: Key, count: int, units: int) -> Array:
    """Sample uniform orthogonal matrices [count, U, U] (Mezzadri 2007), the same as `jax.random.orthogonal`."""
    q, r = jax.vmap(_qr)(draws.normal(key, (count, units, units)))
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
