"""A run of three updates, its translator, and lines to translate."""

import shutil
from pathlib import Path

import pytest

from convs2s_jax.training.run.loop import train
from convs2s_jax.translation.jobs import job
from convs2s_jax.translation.translator import Translator, load
from tests import tiny
from tests.translation.desk import Desk

LINES = ["5 kilowatts", "", "Norway and Spain", "1 2 3 4 5 6", "at 12:30", "Norway", "£5.00", "a (b), c"]


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Path:
    """A workdir with checkpoints of steps 1, 2 and 3."""
    workdir = tmp_path_factory.mktemp("trained") / "run"
    train(tiny.config(training__max_steps=3, training__save_every=1, training__keep=3), workdir)
    return workdir


@pytest.fixture(scope="session")
def other(trained, tmp_path_factory) -> Path:
    """A workdir with another model, of the same vocabularies: the first one's step 1."""
    workdir = tmp_path_factory.mktemp("other") / "run"
    shutil.copytree(trained, workdir)
    for step in (2, 3):
        shutil.rmtree(workdir / "checkpoints" / str(step))
    return workdir


@pytest.fixture(scope="session")
def translator(trained) -> Translator:
    return load(trained, tell=print)


@pytest.fixture(scope="session")
def loaded(trained, other) -> dict[str, Translator]:
    """The models of both workdirs, by name."""
    return {str(workdir): load(workdir, tell=print) for workdir in (trained, other)}


@pytest.fixture
def quick(loaded, monkeypatch) -> None:
    """Each call of `decode` loads its model: one of the two that are loaded already."""
    monkeypatch.setattr(job, "load", lambda workdirs, **_: loaded[str(workdirs[0])])


@pytest.fixture
def desk(tmp_path, trained, lines) -> Desk:
    return Desk(tmp_path, trained, lines)


@pytest.fixture
def lines() -> list[str]:
    return list(LINES)
