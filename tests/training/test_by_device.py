"""Gradients of several batches are exchanged once, in the dtype that is asked for, with the numbers of one device."""

import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from convs2s_jax.nn import affine, weight_norm
from convs2s_jax.scaling import collectives, hlo
from convs2s_jax.training import sharding
from convs2s_jax.training.parallel import compile_steps
from convs2s_jax.training.step import init_state, update
from tests.helpers import drills_but
from tests.meshes import assert_equal_each, mesh_of

WAYS = [("jit", (8, 1, 1)), ("jit", (4, 1, 2)), ("jit", (2, 2, 2)), ("shard_map", (2, 4, 1)), ("pmap", (8, 1, 1))]
SUMS = ("all-reduce", "reduce-scatter")
KERNELS = 8 * 16 + 16 * 32
KEY = jax.random.key(3)


class Sums(NamedTuple):
    """Of squares, and the rows."""

    loss: jax.Array
    tokens: jax.Array


def loss(params, batch, key):
    """Two layers and noise for each row; rows of zeros count nothing."""
    hidden = jnp.tanh(affine.linear(params["lower"], batch["x"]))
    noise = jax.vmap(lambda k: jax.random.normal(k, (16,)))(key)
    y = affine.linear(params["upper"], hidden + 0.1 * noise)
    real = jnp.any(batch["x"] != 0, axis=1)
    return Sums(jnp.sum(jnp.where(real[:, None], y**2, 0.0)), jnp.sum(real))


def batches():
    rng = np.random.default_rng(0)
    made = [{"x": rng.normal(size=(8, 8)).astype(np.float32)} for _ in range(3)]
    made[1]["x"][5:] = 0.0
    return made


def params():
    lower, upper = jax.random.split(jax.random.key(1))
    return weight_norm.split({"lower": affine.init(lower, 8, 16), "upper": affine.init(upper, 16, 32)})


def laid_out(way, sizes, **how):
    """State, steps and batches."""
    optimizer = optax.sgd(0.1, momentum=0.9)
    state = init_state(params(), optimizer)
    if sizes is None:
        return state, compile_steps(loss, optimizer), batches()
    mesh = mesh_of(sizes)
    state = jax.device_put(state, sharding.shardings(state, mesh, way))
    steps = compile_steps(loss, optimizer, mesh, parallel=way, **how)
    return state, steps, jax.device_put(batches(), sharding.batch_sharding(mesh))


def updated(way, sizes, **how):
    """After an update of three batches, and one of a single batch."""
    state, steps, given = laid_out(way, sizes, **how)
    state, first = update(steps, state, given, None, KEY)
    state, second = update(steps, state, given[:1], None, KEY)
    return jax.device_get((state, first, second))


def exchanged(steps, state, batch, mesh):
    """Exchanges of the compiled programs: of the first batch, of a further one, of the end."""
    first = steps.first.lower(state.params, batch, KEY)
    total = steps.first(state.params, batch, KEY)
    lowered = [first, steps.add.lower(total, state.params, batch, KEY), steps.finish.lower(state, total, None)]
    return [collectives.of_program(hlo.parse(each.compile().as_text()), mesh) for each in lowered]


def summed_bytes(found, axis):
    """Bytes of arrays that are summed along a mesh axis, but for sums of the loss and the lengths of kernels."""
    return sum(each.size for each in found if each.kind in SUMS and each.axis == axis and each.size > 256)


@pytest.mark.parametrize(("way", "sizes"), drills_but(WAYS, kept=[("shard_map", (2, 4, 1))]), ids=str)
def test_updates_of_several_batches_are_those_of_one_device(way, sizes):
    assert_equal_each(updated(way, sizes, accumulates=True), updated("jit", None))


def test_batches_of_an_update_are_exchanged_once():
    tensor = 2
    sizes = {"data": 4, "fsdp": 1, "tensor": tensor}
    way, mesh = "jit", (4, 1, tensor)
    state, steps, given = laid_out(way, mesh, accumulates=True)
    first, add, finish = exchanged(steps, state, given[0], sizes)
    assert summed_bytes(first, "data") == summed_bytes(add, "data") == 0
    assert summed_bytes(finish, "data") >= 4 * KERNELS // tensor
    each = exchanged(*laid_out(way, mesh)[1::-1], given[0], sizes)
    assert [summed_bytes(found, "data") >= 4 * KERNELS // tensor for found in each] == [True, True, False]


def test_fsdp_scatters_each_batch_and_sums_over_data_once():
    """So that no device has all gradients."""
    state, steps, given = laid_out("shard_map", (2, 4, 1), accumulates=True)
    first, add, finish = exchanged(steps, state, given[0], {"data": 2, "fsdp": 4, "tensor": 1})
    assert [summed_bytes(found, "fsdp") >= 4 * KERNELS for found in (first, add, finish)] == [True, True, False]
    assert [summed_bytes(found, "data") for found in (first, add)] == [0, 0]
    assert KERNELS <= summed_bytes(finish, "data") < 2 * KERNELS  # a quarter, in float32, and biases
    grads, _ = steps.first(state.params, given[0], KEY)
    assert grads["upper"].w.addressable_shards[0].data.shape == (1, 16, 8)


@pytest.mark.parametrize(("asked", "other", "once"), [("float32", "bf16", False), ("bfloat16", "f32", True)])
def test_gradients_are_summed_in_the_dtype_that_is_asked_for(asked, other, once):
    """In the program as it is handed to XLA, whose CPU compiler sums bfloat16 in float32."""
    state, steps, given = laid_out("jit", (8, 1, 1), sum_dtype=asked, accumulates=once)
    first = steps.first.lower(state.params, given[0], KEY)
    program = steps.finish.lower(state, steps.first(state.params, given[0], KEY), None) if once else first
    operands = re.findall(
        r'"stablehlo.reduce_scatter".*?\}\) : \(tensor<[^>]*x(\w+)>\)', program.as_text(), flags=re.DOTALL
    )
    assert len(operands) == 2
    assert other not in operands
