"""Derivatives of the loss beside its gradient: forward mode, forward over reverse, `shard_map`; in float64."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.training.loss import Batch, loss
from tests.helpers import drills_but
from tests.models.laws import config, parameters

MODELS = {
    "convs2s": ("conv", "conv"),
    "light": ("lightconv", "dynamicconv"),
    "recurrent": ("gru", "bahdanau"),
    "slicenet": ("slicenet", "slicenet"),
}


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64():
        yield


BATCH = Batch(
    src=np.array([[5, 6, 7, EOS], [8, EOS, PAD, PAD]], np.int32),
    tgt=np.array([[9, 4, EOS], [7, EOS, PAD]], np.int32),
)


def setup(name):
    """The loss of a model, a point and a direction among its parameters."""
    cfg = config(*MODELS[name])
    rng = np.random.default_rng(1)
    point = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), parameters(cfg))
    direction = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape)), point)
    return (lambda params, batch=BATCH: loss(params, cfg, batch, smoothing=0.1).loss), point, direction


@pytest.mark.parametrize("name", drills_but(MODELS, kept=["convs2s"]))
def test_forward_mode_and_linearize_are_the_gradient_times_the_direction(name):
    f, point, direction = setup(name)

    @jax.jit
    def three_ways(point, direction):
        gradient = jax.grad(f)(point)
        along = sum(jax.tree.leaves(jax.tree.map(lambda g, v: jnp.sum(g * v), gradient, direction)))
        return along, jax.jvp(f, (point,), (direction,))[1], jax.linearize(f, point)[1](direction)

    along, forward, linear = three_ways(point, direction)
    np.testing.assert_allclose(forward, along, rtol=1e-9)
    np.testing.assert_allclose(linear, along, rtol=1e-9)


def test_smoothing_is_a_number_or_a_traced_array():
    """The loss is linear in it, so its derivative is the difference between two values."""
    cfg, point = config(*MODELS["convs2s"]), setup("convs2s")[1]

    def f(smoothing):
        return loss(point, cfg, BATCH, smoothing=smoothing).loss

    numbers = [float(jax.jit(partial(f, s))()) for s in (0.0, 0.1, 0.25)]
    traced = jax.jit(jax.vmap(f))(jnp.asarray([0.0, 0.1, 0.25], jnp.float32))
    np.testing.assert_allclose(traced, numbers, rtol=1e-7)  # 0.1 is rounded to float32
    np.testing.assert_allclose(jax.jit(partial(f, jnp.asarray(0.25)))(), numbers[2], rtol=1e-12)
    slope = (numbers[2] - numbers[0]) / 0.25
    for derivative in (jax.grad, jax.jacfwd):
        np.testing.assert_allclose(jax.jit(derivative(f))(0.1), slope, rtol=1e-9)
    assert abs(slope) > 0.1
    with pytest.raises(ValueError, match=r"^smoothing is 1.0: use 0 or more and less than 1$"):
        f(jnp.asarray(1.0))


@pytest.mark.parametrize("name", drills_but(MODELS, kept=["convs2s", "recurrent"]))
def test_rows_over_devices_of_a_shard_map_have_the_gradient_of_the_batch(name):
    """With its defaults: it checks which arrays vary. Values are computed for one kind, types for all."""
    f, point, _ = setup(name)
    mesh = jax.make_mesh((2,), ("rows",), axis_types=(AxisType.Auto,))

    @jax.shard_map(mesh=mesh, in_specs=(P(), P("rows")), out_specs=P())
    def summed(params, batch):
        return jax.lax.psum(f(params, batch), "rows")

    ours, theirs = (jax.value_and_grad(each) for each in (lambda params: summed(params, BATCH), f))
    jax.eval_shape(ours, point)
    if name == "convs2s":
        found, expected = (jax.jit(each)(point) for each in (ours, theirs))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), found, expected)
