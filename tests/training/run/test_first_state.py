"""The state before the first update, made in parts: the same numbers on all meshes, and no device holds all of it."""

from functools import partial

import jax
import numpy as np
import pytest

from convs2s_jax.nn.trees import path_of
from convs2s_jax.training import dispatch, sharding
from convs2s_jax.training.mesh import MeshConfig, make
from convs2s_jax.training.run.configured import fresh_state
from convs2s_jax.training.run.first_state import FirstState
from convs2s_jax.training.run.run_programs import placed_state, program_key, state_program
from tests import tiny
from tests.helpers import drills_but
from tests.meshes import mesh_of
from tests.models import kinds

SIZES = {"source": 160, "target": 168}
KEY = jax.random.key(3)
MODEL = {
    "model__encoder": {"layers": [[128, 3]] * 3, "max_positions": 64},
    "model__decoder": {"layers": [[128, 3]] * 2, "out_dim": 8, "max_positions": 64},
    "training__optimizer": {"kind": "adam"},
}


def config(sizes, parallel="jit"):
    mesh = dict(zip(("data", "fsdp", "tensor"), sizes, strict=True))
    return tiny.config(**MODEL, mesh=mesh, parallel=parallel)


@pytest.fixture(scope="module")
def alone():
    mesh = make(MeshConfig(), jax.devices()[:1])
    return jax.device_get(state_program(program_key(config((1, 1, 1))), mesh, **SIZES)(KEY))


CASES = [
    *[("jit", sizes) for sizes in [(8, 1, 1), (1, 8, 1), (2, 2, 2), (4, 1, 2), (1, 1, 8)]],
    ("explicit", (2, 4, 1)),
    ("shard_map", (2, 4, 1)),
    ("pmap", (8, 1, 1)),
]


@pytest.mark.parametrize(("way", "sizes"), drills_but(CASES, [("jit", (2, 2, 2))]))
def test_it_is_that_of_one_device(way, sizes, alone):
    """Draws bit for bit. Lengths are sums of squares, whose order is that of the devices: they differ by rounding."""
    cfg, mesh = config(sizes, way), mesh_of(sizes)
    made = state_program(program_key(cfg), mesh, **SIZES)(KEY)
    layout = sharding.shardings(made, mesh, way)
    pairs = zip(jax.tree_util.tree_leaves_with_path(made), jax.tree.leaves(alone), jax.tree.leaves(layout), strict=True)
    for (path, ours), theirs, place in pairs:
        assert ours.sharding.is_equivalent_to(place, ours.ndim)
        if path_of(path).endswith("/g"):
            np.testing.assert_allclose(ours, theirs, rtol=1e-6)  # 8 roundings of float32
        else:
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(("encoder", "decoder"), drills_but(kinds.together(), [("gru", "bahdanau")]))
def test_each_kind_draws_in_one_loop_what_it_draws_one_by_one(encoder, decoder):
    side = {"data__src": ""} if encoder == "none" else {}
    cfg = tiny.config(model={"embedding_dim": 32, **kinds.pair(encoder, decoder)}, **side)
    made = state_program(program_key(cfg), make(MeshConfig(), jax.devices()[:1]), **SIZES)
    assert isinstance(made, FirstState)
    alone = dispatch.jit_once(partial(fresh_state, model=cfg.model, training=cfg.training, **SIZES), None)
    assert jax.tree.all(jax.tree.map(np.array_equal, made(KEY), alone(KEY)))


@pytest.mark.drill
@pytest.mark.parametrize("sizes", [(8, 1, 1), (1, 8, 1)])
def test_no_device_holds_it_whole(sizes):
    """Beside its part of the result a device has its part of the draws, of layers that are alike once more."""
    mesh = mesh_of(sizes)
    key = program_key(config(sizes))
    state = placed_state(key, mesh, **SIZES)
    whole = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    memory = state_program(key, mesh, **SIZES).lower(KEY).compile().memory_analysis()
    assert memory.output_size_in_bytes + memory.temp_size_in_bytes < whole / 3
