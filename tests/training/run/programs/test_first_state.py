"""The state before the first update, made in parts: the same numbers on all meshes, and no device holds all of it."""

import re
from functools import partial
from unittest.mock import Mock

import jax
import numpy as np
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.models.classifier import ClassifierConfig
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.nn.draws import BatchedInit
from convs2s_jax.nn.trees import path_of
from convs2s_jax.training import dispatch, sharding
from convs2s_jax.training.mesh import MeshConfig, make
from convs2s_jax.training.run import programs
from convs2s_jax.training.run.programs import FirstState, fresh_state, placed_state, program_key, state_program
from convs2s_jax.training.run.tasks.task_table import task_of
from tests import tiny
from tests.helpers import drills_but
from tests.meshes import mesh_of
from tests.models import kinds

SIZES = {"source": 160, "target": 168}
KEY = jax.random.key(3)
ONE = make(MeshConfig(), jax.devices()[:1])
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


def model_of(encoder, decoder):
    return build(ModelConfig, {"embedding_dim": 32, **kinds.pair(encoder, decoder)})


def assert_equals_separate_draws(model):
    key = program_key(tiny.config())._replace(model=model)
    made = state_program(key, ONE, **SIZES)
    assert isinstance(made, FirstState)
    separate = dispatch.jit_once(partial(fresh_state, model=model, training=key.training, **SIZES), None)
    assert jax.tree.all(jax.tree.map(np.array_equal, made(KEY), separate(KEY)))


@pytest.mark.parametrize(("encoder", "decoder"), drills_but(kinds.together(), [("lightconv", "lightconv")]))
def test_each_kind_draws_in_one_loop_what_it_draws_separately(encoder, decoder):
    assert_equals_separate_draws(model_of(encoder, decoder))


@pytest.mark.drill
@pytest.mark.parametrize(
    "features", [{"kind": "kim", "widths": (2, 3), "maps": 8}, {"kind": "pooled", "encoder": {"layers": [(8, 3)]}}]
)
def test_classifiers_do_too(features):
    assert_equals_separate_draws(build(ClassifierConfig, {"embedding_dim": 8, "features": features}))


@pytest.mark.parametrize(("encoder", "decoder"), kinds.together())
def test_no_kind_draws_by_other_functions(encoder, decoder):
    """These would be the same numbers, and the code of the generator once more for each."""
    model = model_of(encoder, decoder)
    batched = BatchedInit(partial(task_of(model).init, cfg=model, **SIZES))
    keys = jax.eval_shape(batched.keys, KEY)
    jaxpr = str(jax.make_jaxpr(batched.parameters)(KEY, keys))
    assert str(0x1BD11BDA) in jaxpr  # a constant of the generator, written out in `nn.draws`
    assert not {"threefry2x32", "random_bits"} & set(re.findall(r"\w+", jaxpr))


@pytest.mark.parametrize("where", ["no host", "another generator", "nested draws"])
def test_elsewhere_it_is_one_program_with_separate_draws(where, monkeypatch):
    if where == "no host":
        monkeypatch.setattr(programs.draws, "host", lambda: None)
    elif where == "another generator":
        monkeypatch.setattr(programs.draws, "can_be_batched", lambda: False)
    else:
        monkeypatch.setattr(programs, "BatchedInit", Mock(side_effect=programs.draws.NestedDrawError))
    made = state_program.__wrapped__(program_key(config((1, 1, 1))), ONE, **SIZES)
    assert not isinstance(made, FirstState)
    assert made.lower(KEY).out_info.step.shape == ()


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
