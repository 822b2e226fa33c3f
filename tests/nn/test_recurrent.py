"""Recurrent cells against loops of numbers and against PyTorch, gradients too."""

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.nn import recurrent
from convs2s_jax.nn.recurrent import CELLS
from tests.helpers import array, drills_but, operations

B, T, C, U = 3, 5, 4, 6
REAL = [range(5), range(2, 5), range(3)]
"""The real positions of each row, with padding on either side."""
MASK = np.asarray([[t in real for t in range(T)] for real in REAL])
every_cell = pytest.mark.parametrize("name", CELLS)


def setup(name):
    """A cell in which no bias is zero, inputs and a state to begin with."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(partial(recurrent.init, kind=CELLS[name], inputs=C, units=U), jax.random.key(0))
    cell = jax.tree.map(lambda leaf: array(0.5 * rng.normal(size=leaf.shape), leaf.dtype), shapes)
    x = array(rng.normal(size=(B, T, C)))
    state = tuple(array(rng.normal(size=(B, U))) for _ in range(CELLS[name].parts))
    return cell, x, state


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def gru_loop(x, s, state):
    """Equations 5 to 8 of Cho et al. with the reset after the product, unit by unit."""
    h = state[0].copy()
    for u in range(U):
        r, z = sigmoid(x[u] + s[u]), sigmoid(x[U + u] + s[U + u])
        h[u] = z * state[0][u] + (1 - z) * math.tanh(x[2 * U + u] + r * s[2 * U + u])
    return [h]


def lstm_loop(x, s, state):
    h, c = state[0].copy(), state[1].copy()
    for u in range(U):
        i, f, o = (sigmoid(x[g * U + u] + s[g * U + u]) for g in (0, 1, 3))
        c[u] = f * state[1][u] + i * math.tanh(x[2 * U + u] + s[2 * U + u])
        h[u] = o * math.tanh(c[u])
    return [h, c]


LOOPS = {"gru": gru_loop, "lstm": lstm_loop}


@pytest.mark.parametrize("reverse", drills_but([False, True], kept=[True]))
@every_cell
def test_a_run_equals_a_loop_over_real_positions(name, reverse):
    cell, x, first = setup(name)
    outputs, last = recurrent.run(CELLS[name], cell, first, x, MASK, reverse=reverse)
    w, u = (np.asarray(kernel, np.float64) for kernel in (cell.input.w, cell.state.w))
    expected = np.zeros((B, T, U))
    for b, real in enumerate(REAL):
        state = [np.asarray(part[b], np.float64) for part in first]
        for t in reversed(real) if reverse else real:
            state = LOOPS[name](x[b, t] @ w + cell.input.b, state[0] @ u + cell.state.b, state)
            expected[b, t] = state[0]
        for part, reference in zip(last, state, strict=True):
            np.testing.assert_allclose(part[b], reference, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(outputs, expected, rtol=1e-5, atol=1e-6)


@every_cell
def test_a_run_and_all_its_gradients_equal_those_of_pytorch(name):
    """Kernels, biases, inputs and the first state all get the same gradient."""
    torch = pytest.importorskip("torch")
    cell, x, first = setup(name)
    rng = np.random.default_rng(1)
    weights = [rng.normal(size=(B, T, U)), *(rng.normal(size=(B, U)) for _ in first)]

    def total(cell, x, first):
        outputs, last = recurrent.run(CELLS[name], cell, first, x, jnp.ones((B, T), bool))
        return sum(jnp.sum(y * w.astype(np.float32)) for y, w in zip([outputs, *last], weights, strict=True))

    d_cell, d_x, d_first = jax.jit(jax.grad(total, (0, 1, 2)))(cell, x, first)
    module = {"gru": torch.nn.GRU, "lstm": torch.nn.LSTM}[name](C, U, batch_first=True, dtype=torch.float64)
    names = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
    kernels = [cell.input.w.T, cell.state.w.T, cell.input.b, cell.state.b]
    module.load_state_dict({key: torch.tensor(np.asarray(value)) for key, value in zip(names, kernels, strict=True)})
    leaves = [torch.tensor(np.asarray(a), dtype=torch.float64, requires_grad=True) for a in (x, *first)]
    start = tuple(leaf[None] for leaf in leaves[1:])
    outputs, last = module(leaves[0], start if len(start) > 1 else start[0])
    last = [part[0] for part in (last if len(start) > 1 else [last])]
    sum((y * torch.tensor(w)).sum() for y, w in zip([outputs, *last], weights, strict=True)).backward()

    ours = [d_cell.input.w.T, d_cell.state.w.T, d_cell.input.b, d_cell.state.b, d_x, *d_first]
    theirs = [*(dict(module.named_parameters())[key].grad for key in names), *(leaf.grad for leaf in leaves)]
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-5)


@every_cell
def test_states_of_bfloat16_kernels_add_up_in_float32(name):
    cell, x, _ = setup(name)
    half = jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), cell)
    start = recurrent.zeros(CELLS[name], B, U, jnp.bfloat16)
    outputs, last = recurrent.run(CELLS[name], half, start, x, MASK)
    assert outputs.dtype == jnp.bfloat16
    assert {part.dtype for part in last} == {jnp.dtype("float32")}
    exact, _ = recurrent.run(CELLS[name], cell, start, x, MASK)
    np.testing.assert_allclose(outputs.astype(jnp.float32), exact, atol=0.03)


@every_cell
def test_a_fresh_cell_keeps_lengths_and_an_lstm_remembers(name):
    """Each gate's U is orthogonal, W has deviation sqrt(keep / C) (10,000 draws: 3 %), the forget gate's bias is 1."""
    kind = CELLS[name]
    cell = recurrent.init(jax.random.key(0), kind, 200, 16, keep=0.5)
    for gate in jnp.split(cell.state.w, kind.gates, axis=1):
        np.testing.assert_allclose(gate.T @ gate, np.eye(16), atol=1e-5)
    assert float(jnp.std(cell.input.w)) == pytest.approx((0.5 / 200) ** 0.5, rel=0.03)
    forget = {"gru": [0, 0, 0], "lstm": [0, 1, 0, 0]}[name]
    np.testing.assert_array_equal(cell.input.b, np.repeat(forget, 16))
    np.testing.assert_array_equal(cell.state.b, 0.0)


@pytest.mark.parametrize("models", [None, 2])
def test_no_kernel_factorises_several_matrices(models):
    """On CPUs such kernels may wait for each other forever."""
    init = partial(recurrent.init, kind=CELLS["gru"], inputs=C, units=U)
    keys = jax.random.split(jax.random.key(0), models or 1)
    traced = jax.make_jaxpr(jax.vmap(init) if models else init)(keys if models else keys[0])
    found = [one.invars[0].aval.ndim for one in operations(traced.jaxpr) if one.primitive.name in ("geqrf", "qr")]
    assert set(found) == {2}
