"""What several files of tests begin from: checkpoints and programs."""

import shutil

import pytest

from convs2s_jax.training.run import compilations
from tests.checkpoints import save


@pytest.fixture
def own_programs():
    """The runs of a test compile their programs, as the first ones of a process do."""
    compilations.forget()
    yield
    compilations.forget()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with checkpoints of steps 10, 20 and 30, of which 20 is the best; to be copied, not changed."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    assert save(folder, {10: 3.0, 20: 1.0, 30: 2.0}) == [10, 20, 30]
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved.parent, tmp_path, dirs_exist_ok=True) / "checkpoints"
