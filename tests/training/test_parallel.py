"""One update on any mesh: the loss, each parameter's gradient and the updates of one device."""

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.convs2s import ConvDecoderConfig, ConvEncoderConfig, ConvLayer
from convs2s_jax.training import sharding
from convs2s_jax.training.run.config import TrainingConfig
from convs2s_jax.training.run.programs import ProgramKey, compile_run
from convs2s_jax.training.step import update
from tests.meshes import assert_equal_each, batch, mesh_of
from tests.states import first_state

MODEL = ModelConfig(
    embedding_dim=8,
    dropout=0.3,
    encoder=ConvEncoderConfig(layers=(ConvLayer(32, 3), ConvLayer(32, 3), ConvLayer(16, 3)), max_positions=32),
    decoder=ConvDecoderConfig(layers=(ConvLayer(32, 3), ConvLayer(16, 3)), out_dim=8, max_positions=32),
)
TRAINING = TrainingConfig(label_smoothing=0.1, clip=0.1)
VOCABULARIES = {"source": 24, "target": 20}
MESHES = [(1, 1, 1), (8, 1, 1), (1, 8, 1), (4, 2, 1), (2, 2, 2), (4, 1, 2), (1, 2, 4)]
WAYS = [
    *[("jit", mesh) for mesh in MESHES],
    *[("shard_map", mesh) for mesh in [(1, 1, 1), (8, 1, 1), (2, 4, 1), (4, 1, 2), (1, 2, 4)]],
    *[("pmap", mesh) for mesh in [(1, 1, 1), (8, 1, 1)]],
]
ONCE = [("jit", (8, 1, 1), True), ("shard_map", (2, 4, 1), True)]
"""With one exchange of the gradients of an update."""
KEY = jax.random.key(7)
BATCHES = [batch(0, 8, 7, 9), batch(1, 8, 7, 9)]
"""Few rows and many channels: only there does XLA move the parts of a batch and not of a kernel, and go wrong."""


def laid_out(way="jit", sizes=None, *, once=False):
    """State, compiled update and batches; on one device without sizes."""
    state = first_state(jax.random.key(1), MODEL, TRAINING, **VOCABULARIES)
    if sizes is None:
        return state, compile_run(ProgramKey(MODEL, TRAINING)), BATCHES
    mesh = mesh_of(sizes)
    state = jax.device_put(state, sharding.shardings(state, mesh, way))
    batches = jax.device_put(BATCHES, sharding.batch_sharding(mesh))
    return state, compile_run(ProgramKey(MODEL, TRAINING, way, once), mesh), batches


def three_updates(state, steps, batches):
    """The second accumulates, so that all compiled parts are used."""
    reports = []
    for i, group in enumerate((batches[:1], batches, batches[:1])):
        state, report = update(steps, state, group, jnp.float32(0.25), jax.random.fold_in(KEY, i))
        reports.append(report)
    return state, reports


KEPT = [(2, 2, 2), (4, 1, 2)]
"""Kernels that layers gather, and kernels that are gathered before the first layer, in groups of channels."""


@pytest.mark.parametrize("sizes", KEPT, ids=str)
def test_gradients_are_those_of_one_device(sizes):
    """The other ways have smaller losses in test_by_device.py and test_sharding_rules.py."""
    found, expected = (
        jax.device_get(steps.first(state.params, batches[0], KEY))
        for state, steps, batches in (laid_out("jit", sizes), laid_out())
    )
    assert_equal_each(found, expected)


@pytest.fixture(scope="module")
def updates():
    return jax.device_get(three_updates(*laid_out()))


@pytest.mark.drill
@pytest.mark.parametrize(("way", "sizes", "once"), [*((*way, False) for way in WAYS), *ONCE], ids=str)
def test_updates_are_those_of_one_device(way, sizes, once, updates):
    """As test_by_device.py shows of a small loss."""
    state, steps, batches = laid_out(way, sizes, once=once)
    layout = jax.tree.map(lambda x: x.sharding, state)
    after, reports = three_updates(state, steps, batches)
    assert_equal_each((after, reports), updates)
    assert all(jax.tree.leaves(jax.tree.map(lambda x, old: x.sharding.is_equivalent_to(old, x.ndim), after, layout)))


@pytest.mark.parametrize(("sizes", "times"), [((8, 1, 1), 1), ((1, 8, 1), 2)])
def test_kernels_of_layers_are_gathered_again_for_the_backward_pass_with_fsdp(sizes, times):
    """In the program as it is handed to XLA, of the three convolutions with kernels [3, 32, 64]."""
    state, steps, batches = laid_out("jit", sizes)
    text = steps.first.lower(state.params, batches[0], KEY).as_text()
    assert (
        len(re.findall(r"sharding_constraint .*<@mesh, \[\{\}, \{\}, \{\}\]> : tensor<3x32x64xf32>", text)) == 3 * times
    )


@pytest.mark.drill
def test_a_model_in_bfloat16_has_the_gradients_of_one_device_up_to_rounding():
    """Tables are gathered in bfloat16, and each device's summand is rounded to it."""
    model = dataclasses.replace(MODEL, dtype="bfloat16", dropout=0.0)
    mesh = mesh_of((8, 1, 1))
    params = first_state(jax.random.key(1), model, TRAINING, **VOCABULARIES).params
    expected, _ = compile_run(ProgramKey(model, TRAINING)).first(params, BATCHES[0], None)
    params = jax.device_put(params, sharding.shardings(params, mesh))
    given = jax.device_put(BATCHES[0], sharding.batch_sharding(mesh))
    for way in ("jit", "shard_map"):
        found, _ = compile_run(ProgramKey(model, TRAINING, way), mesh).first(params, given, None)
        assert found.encoder.embedding.table.dtype == jnp.float32
        assert_equal_each(jax.device_get(found), jax.device_get(expected), tolerance=0.03, least=0.01)


@pytest.mark.parametrize(
    ("way", "sizes", "message"),
    [
        ("pmap", (4, 2, 1), r"^mesh\.fsdp is 2, but parallel=pmap shards data only: use 1"),
        ("shard_map", (2, 2, 2), r"^parallel is shard_map, but data, fsdp and tensor of the mesh are above 1: set one"),
    ],
)
def test_modes_refuse_a_mesh_that_they_cannot_use(way, sizes, message):
    with pytest.raises(UserError, match=message):
        compile_run(ProgramKey(MODEL, TRAINING, way), mesh_of(sizes))
