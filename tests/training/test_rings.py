"""Sums over devices written as permutations, and gathers of narrow parts."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from convs2s_jax.nn.affine import Affine
from convs2s_jax.scaling import collectives, hlo
from convs2s_jax.training import gathering, rings, sharding
from convs2s_jax.training.mesh import ROWS
from convs2s_jax.training.softmax import summed_cross_entropy
from tests.meshes import assert_equal_each, mesh_of
from tests.training.test_softmax import plain, with_gradient

RNG = np.random.default_rng(4)


@pytest.fixture
def small(monkeypatch):
    """Rings of few devices of this machine."""
    monkeypatch.setattr(rings, "LEAST", 2)
    monkeypatch.setattr(rings, "PLATFORMS", ("cpu",))


def traced_for(mesh, function):
    def called(*args):
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return function(*args)

    return jax.jit(called)


def exchanges(program, mesh):
    """How often each kind of exchange runs."""
    found = Counter()
    for each in collectives.of_program(hlo.parse(program.as_text()), mesh.shape):
        found[each.kind] += each.times
    return found


@pytest.mark.parametrize(("sizes", "messages"), [((8, 1, 1), 4), ((2, 2, 1), 2), ((1, 7, 1), 6)], ids=str)
def test_each_device_has_its_part_of_the_sum(sizes, messages, small):
    """n = a b devices send a + b - 2 messages."""
    mesh = mesh_of(sizes)
    x = RNG.normal(size=(mesh.size, 2 * mesh.size, 3)).astype(np.float32)
    given = jax.device_put(x, NamedSharding(mesh, P(ROWS)))
    program = traced_for(mesh, lambda x: rings.summed(x, jnp.float32)).lower(given).compile()
    total = program(given)
    np.testing.assert_allclose(total, x.sum(0), rtol=1e-5, atol=1e-6)
    assert total.addressable_shards[-1].data.shape == (2, 3)
    assert exchanges(program, mesh) == {"collective-permute": messages}


@pytest.mark.parametrize(
    ("sizes", "shape", "least", "platform"),
    [
        ((8, 1, 1), (8, 12), 2, "cpu"),
        ((8, 1, 1), (8, 16), 16, "cpu"),
        ((2, 2, 2), (4, 16), 2, "cpu"),
        ((8, 1, 1), (8, 16), 2, "tpu"),
    ],
    ids=str,
)
def test_what_cannot_be_cut_or_is_among_few_or_other_devices_is_a_plain_sum(sizes, shape, least, platform, monkeypatch):
    monkeypatch.setattr(rings, "LEAST", least)
    monkeypatch.setattr(rings, "PLATFORMS", (platform,))
    mesh = mesh_of(sizes)
    x = jax.device_put(RNG.normal(size=shape).astype(np.float32), NamedSharding(mesh, P(ROWS)))
    program = traced_for(mesh, lambda x: rings.summed(x, jnp.float32)).lower(x).compile()
    np.testing.assert_allclose(program(x), np.asarray(x).sum(0), rtol=1e-5, atol=1e-6)
    assert "collective-permute" not in exchanges(program, mesh)


@pytest.mark.parametrize("sizes", [(8, 1, 1), (2, 4, 1)], ids=str)
def test_the_gradient_of_the_output_layer_is_that_of_one_device(sizes, small):
    mesh = mesh_of(sizes)
    layer = Affine(
        w=jnp.asarray(RNG.normal(size=(8, 20)), jnp.float32), b=jnp.asarray(RNG.normal(size=20), jnp.float32)
    )
    given = layer, jnp.asarray(RNG.normal(size=(16, 3, 8)), jnp.float32), jnp.asarray(RNG.integers(4, 20, (16, 3)))
    rows = sharding.batch_sharding(mesh)
    placed = jax.device_put(given, (sharding.replicated(mesh), rows, rows))
    differentiated = with_gradient(summed_cross_entropy, rows=512, smoothing=0.1, shards=8)
    program = traced_for(mesh, differentiated).lower(*placed).compile()
    assert_equal_each(program(*placed), with_gradient(plain, smoothing=0.1)(*given), tolerance=1e-5)
    assert exchanges(program, mesh)["collective-permute"] == 4


@pytest.mark.parametrize(("columns", "dimension"), [(8 * gathering.NARROW, 1), (8 * gathering.NARROW - 8, 0)])
def test_narrow_parts_are_gathered_along_an_axis_of_their_own(columns, dimension):
    mesh = mesh_of((8, 1, 1))
    x = jax.device_put(RNG.normal(size=(4, columns)).astype(np.float32), NamedSharding(mesh, P(None, "data")))

    def whole(x):
        return gathering.constrained({"map_in": {"w": x}}, mesh)["map_in"]["w"].gather.gather(x)

    program = jax.jit(whole).lower(x).compile()
    np.testing.assert_array_equal(program(x), x)
    [gather] = [line for line in program.as_text().splitlines() if " all-gather(" in line]
    assert f"dimensions={{{dimension}}}" in gather
