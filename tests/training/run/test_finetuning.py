"""A new run begins with the parameters and the vocabularies of another one, or with its vocabularies alone."""

import shutil

import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.reports import records
from convs2s_jax.translation.translator import load
from tests import stores, tiny
from tests.checkpoints import without_updates
from tests.helpers import drills_but

bucket = stores.bucket
OTHER = {
    "data__cldr": {"train": 100, "valid": 12, "test": 8, "seed": 2},
    "training__schedule": {"kind": "fixed", "rates": [1e-9]},
    "training__max_steps": 1,
}
"""Other text, and a rate so small that one update leaves the parameters as they were."""
MESHES = [{}, {"mesh__data": 2, "mesh__fsdp": 2}, {"mesh__data": 4, "parallel": "pmap"}]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source") / "run"
    train(tiny.config(training__max_steps=6, training__validate_every=2), folder)
    return folder


def best(workdir):
    return load(workdir, tell=print)


def assert_tuned(workdir, source):
    """The parameters after one tiny update are those of the best checkpoint, and the vocabularies are the same."""
    [[step]] = best(source).steps
    theirs = tiny.arrays(source, step)
    for name, ours in tiny.arrays(workdir, 1).items():
        np.testing.assert_allclose(ours, theirs[name], rtol=1e-6, atol=1e-7, err_msg=name)
    assert run_folder.fingerprints(best(workdir).vocabularies) == run_folder.fingerprints(best(source).vocabularies)


@pytest.mark.parametrize("mesh", drills_but(MESHES, kept=[{}]), ids=str)
def test_a_run_begins_with_the_best_parameters_of_another(mesh, source, tmp_path):
    train(tiny.config(**OTHER, **mesh, training__finetune_from=str(source)), tmp_path / "run")
    assert_tuned(tmp_path / "run", source)
    log = (tmp_path / "run" / "train.log").read_text()
    [[step]] = best(source).steps
    assert f"fine-tuning: parameters of step {step} of {source}" in log
    assert records.read_facts(tmp_path / "run").origin == f"step {step} of {source}"  # as reports say
    assert "learning the vocabularies" not in log


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"model__embedding_dim": 16},
            "contains another model: model.embedding_dim is 8 there and 16 here. Use the model of",
        ),
        (
            {"model__encoder__layers": [[8, 5]]},
            r"contains another model: model.encoder.layers.0.width is 3 there and 5 here",
        ),
        ({"training__finetune_from": "ftp://a/b"}, "finetune_from is ftp://a/b: ftp:// is not supported here"),
        ({"training__finetune_from": "missing"}, "^training.finetune_from=missing: there is no such folder"),
        (
            {"data__src": "de", "data__tgt": "en"},
            "^training.finetune_from=.*run belongs to a run from 'en' to 'de', but this one is from 'de' to 'en': each",
        ),
        ({"data__vocabulary__dir": "x"}, "training.finetune_from uses the vocabularies of that run"),
    ],
)
def test_what_cannot_be_fine_tuned_is_refused_and_nothing_is_written(values, message, source, tmp_path):
    with pytest.raises(UserError, match=message):
        train(tiny.config(**{**OTHER, "training__finetune_from": str(source), **values}), tmp_path / "run")
    assert not (tmp_path / "run" / "config.json").exists()


def test_the_other_run_may_be_in_a_store(source, bucket, tmp_path):
    shutil.copytree(source, bucket / "runs" / "a")
    address = "gs://bucket/runs/a"
    train(tiny.config(**OTHER, training__finetune_from=address), tmp_path / "run")
    assert_tuned(tmp_path / "run", source)
    [[step]] = best(source).steps
    assert f"fine-tuning: parameters of step {step} of {address}\n" in (tmp_path / "run" / "train.log").read_text()
    shutil.rmtree(bucket / "runs" / "a" / "checkpoints")
    with pytest.raises(UserError, match=f"^{address}/checkpoints: there is no checkpoint here"):
        train(tiny.config(**OTHER, training__finetune_from=address), tmp_path / "other")


def test_random_parameters_are_refused(source, tmp_path):
    other = without_updates(source, tmp_path / "other", data=7)
    with pytest.raises(UserError, match=f"^training.finetune_from={other} contains random parameters"):
        train(tiny.config(**OTHER, training__finetune_from=str(other)), tmp_path / "run")
