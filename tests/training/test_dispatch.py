"""Programs of several CPU devices run one at a time, so that XLA's CPU client cannot block itself."""

import re
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import convs2s_jax
from convs2s_jax.training import dispatch
from tests.meshes import mesh_of

LONG = 100
"""Products of matrices in a program: enough that its results are not there when a call that does not wait returns."""
SIZE = 256


def long(x):
    return jax.lax.fori_loop(0, LONG, lambda _, x: x @ x / SIZE, x)


def waits(program, x):
    """Whether results are there whenever a call returns; one of several calls that does not wait suffices."""
    jax.block_until_ready(program(x))
    return all(program(x).is_ready() for _ in range(5))


def spread(mesh):
    return jax.device_put(jnp.ones((SIZE, SIZE)), NamedSharding(mesh, P("fsdp")))


PROGRAMS = {
    "jit": lambda make: (make.jit(long), spread(mesh_of((1, 2, 1)))),
    "pmap": lambda make: (make.pmap(long, devices=jax.devices()[:2]), jnp.ones((2, SIZE, SIZE))),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_call_waits_on_several_cpu_devices(name):
    assert waits(*PROGRAMS[name](dispatch))
    assert not waits(*PROGRAMS[name](jax))


def test_a_call_does_not_wait_on_one_device():
    assert not waits(dispatch.jit(long), jnp.ones((SIZE, SIZE)))


def test_all_programs_of_training_are_started_through_dispatch():
    training = Path(convs2s_jax.__file__).parent / "training"
    found = {path.name for path in training.rglob("*.py") if re.search(r"jax\.(jit|pmap)\b", path.read_text())}
    assert found == {"dispatch.py"}, "use dispatch.jit or dispatch.pmap: devices may exchange arrays"


def chain(x, kernels, behind=jax.lax.optimization_barrier):
    """Layers as those of a deep stack: y = w x, x + y sigmoid(y), behind a barrier."""
    for w in kernels:
        y = x @ w
        x = behind((x + y * jax.nn.sigmoid(y)) * 0.7)
    return jnp.sum(x)


def most_read(program, *args):
    """The largest number of arrays that one of the program's fusions reads."""
    text = program.lower(*args).compile().as_text()
    return max(found.count("%") for found in re.findall(r" fusion\(([^)]*)\)", text))


def test_barriers_hold_on_cpu():
    """XLA's CPU compiler drops them by itself in jax 0.10, and fusions read more products, the deeper the stack is."""
    x, kernels = jnp.ones((16, 8)), [jnp.eye(8) * 0.5] * 6
    gradient, without = (jax.grad(partial(chain, behind=f)) for f in (jax.lax.optimization_barrier, lambda x: x))
    assert most_read(dispatch.jit_with_barriers(gradient, None), x, kernels) <= 4
    assert most_read(dispatch.jit(without), x, kernels) > 6
