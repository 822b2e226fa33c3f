"""An update with a loss and an optimiser of one's own."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.models import conversion
from convs2s_jax.models import encoder_decoder as model
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.nn import struct
from convs2s_jax.training import sharding
from convs2s_jax.training.loss import loss
from convs2s_jax.training.parallel import compile_steps
from convs2s_jax.training.step import init_state, update
from tests.helpers import close, drills_but, same
from tests.meshes import batch, mesh_of
from tests.models.kinds import pair
from tests.models.laws import filled

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


def test_an_update_runs_without_compilation():
    expected, other = (init_state(jax.tree.map(jnp.asarray, START), optax.sgd(1.0)) for _ in range(2))
    steps = compile_steps(squared_error, optax.sgd(1.0))
    expected, _ = update(steps, expected, BATCHES, 0.1, None)
    with jax.disable_jit():
        other, _ = update(steps, other, BATCHES, 0.1, None)
    same(other.params["w"], expected.params["w"])


@pytest.mark.parametrize("parallel", drills_but(["jit", "shard_map", "pmap"], kept=["shard_map"]))
@pytest.mark.parametrize("impl", drills_but(["threefry2x32", "unsafe_rbg"], kept=["unsafe_rbg"]))
def test_the_public_loss_is_that_of_one_device_in_each_mode(parallel, impl):
    """In float64, since the rounding of float32 is 2e-5 of the norm of these gradients."""
    cfg = build(ModelConfig, {"embedding_dim": 8, "dropout": 0.3, **pair("conv", "conv")})
    sizes = {"source_vocabulary": 24, "target_vocabulary": 20}
    params = filled(jax.eval_shape(lambda: model.init(jax.random.key(0), cfg, **sizes)))
    params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    key = jax.random.key(3, impl=impl)

    def mean(mesh):
        steps = compile_steps(lambda p, b, key: loss(p, cfg, b, key=key), optax.sgd(1.0), mesh, parallel=parallel)
        state = init_state(jax.jit(conversion.split, static_argnums=1)(params, cfg), optax.sgd(1.0))
        _, report = update(steps, state, [batch(0, 8, 7, 9)], 0.1, key)
        return jax.device_get((report.loss.loss, report.grad_norm))

    with jax.enable_x64(True):
        close(mean(mesh_of((2, 1, 1))), mean(None), 1e-12)


def test_an_update_consumes_its_state_and_not_the_parameters_it_was_made_of():
    params = jax.tree.map(jnp.asarray, START)
    state = init_state(params, optax.sgd(0.1))
    update(compile_steps(squared_error, optax.sgd(0.1)), state, BATCHES, None, None)
    assert state.params["w"].is_deleted()
    np.testing.assert_array_equal(params["w"], START["w"])


def new_update(batches, key=None):
    return update(compile_steps(squared_error, optax.sgd(0.1)), init_state(START, optax.sgd(0.1)), batches, None, key)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: compile_steps(squared_error, optax.sgd(0.1), parallel="xmap"), "parallel is 'xmap': use"),
        (lambda: compile_steps(squared_error, optax.sgd(0.1), clip=-1.0), "^clip is -1.0: use a maximum gradient norm"),
        (lambda: compile_steps(squared_error, optax.sgd(0.1), clip=np.nan), "^clip is nan: use a maximum gradient nor"),
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
