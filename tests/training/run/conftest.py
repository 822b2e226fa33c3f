"""What several files of tests begin from: checkpoints, and file systems with and without flock."""

import errno
import fcntl
import shutil

import pytest

from convs2s_jax.training.run import compilations
from convs2s_jax.training.run.locks import lease
from tests.checkpoints import save
from tests.locks import CLAIMS, FLOCK


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


@pytest.fixture(params=[FLOCK, CLAIMS])
def mode(request, monkeypatch):
    """The file system of this process has flock, or has none."""
    if request.param == CLAIMS:

        def unsupported(*_):
            raise OSError(errno.ENOTSUP, "Operation not supported")

        monkeypatch.setattr(fcntl, "flock", unsupported)
        monkeypatch.setattr(lease, "BEAT", 0.05)
        monkeypatch.setattr(lease, "SILENCE", 0.5)
    return request.param
