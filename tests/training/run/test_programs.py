"""The first state of a run is that of one device, and runs share their programs."""

import dataclasses

import jax
import numpy as np
import pytest

from convs2s_jax.nn.trees import path_of
from convs2s_jax.training import sharding
from convs2s_jax.training.mesh import MeshConfig, make
from convs2s_jax.training.run.compilations import CompileCounter, forget
from convs2s_jax.training.run.config import TrainingConfig
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.programs import program_key, state_program
from tests import tiny
from tests.helpers import drills_but
from tests.meshes import mesh_of

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


FIXED = {"kind": "fixed", "rates": [0.1]}
OTHERWISE = {"seed": 5, "training__schedule": FIXED, "training__max_steps": 6}


@pytest.mark.usefixtures("own_programs")
def test_a_second_run_compiles_nothing_and_has_the_bits_of_one_that_compiles_its_own(tmp_path):
    train(tiny.config(), tmp_path / "first")
    with CompileCounter() as counter:
        train(tiny.config(**OTHERWISE), tmp_path / "second")
    assert counter.count == 0
    forget()
    with CompileCounter() as counter:
        train(tiny.config(**OTHERWISE), tmp_path / "alone")
    assert counter.count > 0
    assert tiny.digests(tmp_path / "second", 6) == tiny.digests(tmp_path / "alone", 6)
    assert tiny.digests(tmp_path / "second", 6) != tiny.digests(tmp_path / "first", 8)


OF_PROGRAMS = {
    "clip": 0.2,
    "label_smoothing": 0.1,
    "optimizer": {"kind": "adam"},
    "skip_bad_steps": 2,
    "sum_dtype": "float32",
}
"""Fields of `TrainingConfig` on which programs depend, each with another value."""
NOT_OF_PROGRAMS = {
    "best_metric": "bleu",
    "bleu_tokenize": "none",
    "compile_ahead": 1,
    "finetune_from": "another",
    "keep": 5,
    "max_epochs": 3,
    "max_steps": 9,
    "metrics": ("chrf",),
    "patience": 3,
    "peak_flops": 1e12,
    "profile": "1:2",
    "report_every": 7,
    "save_every": 3,
    "save_every_minutes": 1.0,
    "schedule": FIXED,
    "trackers": ("mlflow",),
    "validate_bleu": False,
    "validate_every": 4,
}


def test_every_field_of_training_is_known_to_be_of_programs_or_not():
    assert {field.name for field in dataclasses.fields(TrainingConfig)} == set(OF_PROGRAMS) | set(NOT_OF_PROGRAMS)


OTHERS_OF_PROGRAMS = {
    "model__dropout": 0.2,
    "model__execution__remat": "block",
    "parallel": "shard_map",
    "data__batch__accumulate": 2,
    "mesh__rules": (("decoder/output", (None,)),),
}
OTHERS_NOT_OF_PROGRAMS = {"seed": 3, "data__batch__shapes": 3, "search__beam_size": 4}


def test_programs_are_shared_by_all_configurations_that_differ_in_nothing_they_depend_on():
    base = {"training__validate_bleu": True}
    usual = tiny.config(**base)
    for others, known, same in (
        (OTHERS_OF_PROGRAMS, OF_PROGRAMS, False),
        (OTHERS_NOT_OF_PROGRAMS, NOT_OF_PROGRAMS, True),
    ):
        for field, value in (others | {f"training__{field}": value for field, value in known.items()}).items():
            other = tiny.config(**{**base, field: value})
            assert other != usual, field
            assert (program_key(other) == program_key(usual)) == same, field
    one, two = (tiny.config(training__skip_bad_steps=n) for n in (1, 2))
    assert program_key(one) == program_key(two)
