"""Checkpoints that several files of tests begin from."""

import shutil

import pytest

from tests.checkpoints import save


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with checkpoints of steps 10, 20 and 30, of which 20 is the best; to be copied, not changed."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    assert save(folder, {10: 3.0, 20: 1.0, 30: 2.0}) == [10, 20, 30]
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "checkpoints")
