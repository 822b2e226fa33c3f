"""An update with a loss and an optimiser of one's own."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import optax.contrib
import pytest

from convs2s_jax.nn import struct
from convs2s_jax.training import sharding
from convs2s_jax.training.parallel import compile_steps
from convs2s_jax.training.step import init_state, update
from tests.meshes import mesh_of

RNG = np.random.default_rng(0)
BATCHES = [{"x": RNG.normal(size=(16, 3)).astype("f"), "y": RNG.normal(size=16).astype("f")} for _ in range(2)]
START = {"b": np.float32(0.5), "w": np.array([0.3, -0.2, 0.1], np.float32)}
OPTIMIZERS = {
    "chain": (optax.chain(optax.clip(0.01), optax.adam(1e-2)), None),
    "rate given": (optax.chain(optax.clip(0.01), optax.adam(1.0)), 1e-2),
}


@struct.dataclass
class SquaredSums:
    loss: Any
    tokens: Any


def squared_error(params, batch, key):
    """Linear regression; `tokens` counts rows."""
    del key
    error = batch["x"] @ params["w"] + params["b"] - batch["y"]
    return SquaredSums(loss=jnp.sum(error**2), tokens=jnp.asarray(len(error)))


def new_update(batches, key=None, rate=None):
    return update(compile_steps(squared_error, optax.sgd(0.1)), init_state(START, optax.sgd(0.1)), batches, rate, key)


def after_three(optimizer, rate, mesh=None, **options):
    steps = compile_steps(squared_error, optimizer, mesh, **options)
    state = init_state(jax.tree.map(jnp.asarray, START), optimizer)
    batches = BATCHES
    if mesh is not None:
        batches = jax.device_put(BATCHES, sharding.batch_sharding(mesh))
        state = jax.device_put(state, sharding.replicated(mesh))
    with jax.numpy_dtype_promotion("standard"):  # optax's Adam raises a float to an integer power
        for _ in range(3):
            state, report = update(steps, state, batches, None if rate is None else jnp.float32(rate), None)
    return jax.device_get((state.params, report))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optax_chain_makes_the_update(name):
    """Against a loop in numpy: mean gradients over all rows, each element clipped, Adam."""
    params = {key: np.asarray(value, np.float64) for key, value in START.items()}
    x, y = (np.concatenate([batch[key] for batch in BATCHES]).astype(np.float64) for key in "xy")
    m, v = dict.fromkeys(params, 0.0), dict.fromkeys(params, 0.0)
    for t in range(1, 4):
        error = x @ params["w"] + params["b"] - y
        grads = {"b": 2 * np.mean(error), "w": 2 * x.T @ error / len(x)}
        norm = np.sqrt(grads["b"] ** 2 + np.sum(grads["w"] ** 2))
        for key, g in grads.items():
            g = np.clip(g, -0.01, 0.01)
            m[key], v[key] = 0.9 * m[key] + 0.1 * g, 0.999 * v[key] + 0.001 * g * g
            direction = (m[key] / (1 - 0.9**t)) / (np.sqrt(v[key] / (1 - 0.999**t)) + 1e-8)
            params[key] = params[key] - 1e-2 * direction
    found, report = after_three(*OPTIMIZERS[name])
    for key, value in params.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-5)
    np.testing.assert_allclose(report.grad_norm, norm, rtol=1e-5)
    np.testing.assert_allclose(report.loss.loss, np.sum(error**2), rtol=1e-5)


def test_an_optimizer_may_need_the_value_of_the_loss():
    """Polyak's step is loss / |gradient|^2, of the mean over the rows of both batches; against a loop in numpy."""
    params = {key: np.asarray(value, np.float64) for key, value in START.items()}
    x, y = (np.concatenate([batch[key] for batch in BATCHES]).astype(np.float64) for key in "xy")
    for _ in range(3):
        error = x @ params["w"] + params["b"] - y
        grads = {"b": 2 * np.mean(error), "w": 2 * x.T @ error / len(x)}
        rate = np.mean(error**2) / (grads["b"] ** 2 + np.sum(grads["w"] ** 2))
        params = {key: params[key] - rate * grads[key] for key in params}
    polyak = optax.polyak_sgd(max_learning_rate=100.0)
    for more in ({}, {"mesh": mesh_of((8, 1, 1)), "parallel": "pmap"}):
        found, _ = after_three(polyak, None, **more)
        for key, value in params.items():
            np.testing.assert_allclose(found[key], value, rtol=1e-4)


@pytest.mark.parametrize("optimizer", [optax.sgd(0.1), optax.contrib.cocob()], ids=["sgd", "keeps_parameters"])
def test_an_update_consumes_its_state_and_not_the_parameters_it_was_made_of(optimizer):
    params = jax.tree.map(jnp.asarray, START)
    state = init_state(params, optimizer)
    with jax.numpy_dtype_promotion("standard"):
        update(compile_steps(squared_error, optimizer), state, BATCHES, None, None)
    assert state.params["w"].is_deleted()
    np.testing.assert_array_equal(params["w"], START["w"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compile_steps(squared_error, optax.sgd(0.1), parallel="xmap"), "parallel is 'xmap': use"),
        (lambda: compile_steps(squared_error, optax.sgd(0.1), clip=-1.0), "^clip is -1.0: use a maximum gradient norm"),
        (lambda: compile_steps(squared_error, optax.sgd(0.1), clip=np.nan), "^clip is nan: use a maximum gradient nor"),
        (
            lambda: after_three(optax.lbfgs(), None),
            "^an update has gradients, .* and this optimiser needs something else: use another one .*'value_fn'",
        ),
        (
            lambda: after_three(optax.lookahead(optax.sgd(0.1), 2, 0.5), None),
            "^an update has gradients, .* needs something else: use another one .*'fast'",
        ),
        (lambda: new_update([]), "at least one batch"),
        (lambda: new_update(BATCHES[0]), r"^batches is a dict: pass a list of one or more batches, such as \[batch\]$"),
        (lambda: new_update(NamedTuple("Pair", [("x", Any)])(BATCHES[0]["x"])), "^batches is a Pair: pass a list"),
        (lambda: new_update(BATCHES, 0), r"^key is 0: create one with jax.random.key\(seed\)$"),
        (
            lambda: new_update([{"x": BATCHES[0]["x"], "y": BATCHES[0]["y"][:-1]}]),
            r"^the leaves of the batch have shapes \[\(16, 3\), \(15,\)\]: each needs",
        ),
        (
            lambda: compile_steps(lambda *_: jnp.zeros(()), optax.sgd(0.1)).first(START, BATCHES[0], None),
            "^the loss returned an array: expected sums with `loss` and `tokens`, such as `LossSums`",
        ),
    ],
)
def test_wrong_calls_are_one_sentence(call, message):
    with pytest.raises((ValueError, TypeError), match=message):
        call()
