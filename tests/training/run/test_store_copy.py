"""Workdirs in object stores that are only read: what messages call them, and a disk without room for the copy."""

import errno

import pytest

from convs2s_jax.core import stores
from convs2s_jax.core.errors import UserError
from convs2s_jax.training.run import store_copy
from tests.stores import bucket  # noqa: F401  (a fixture)


def test_sentences_about_a_local_workdir_stay_as_they_are(tmp_path, monkeypatch):
    """The path of a folder ./a is "a", which is in most sentences."""
    monkeypatch.chdir(tmp_path)
    told = []
    with store_copy.reading("./a", told.append) as (_, tell):
        tell("averaging the checkpoints")
    assert told == ["averaging the checkpoints"]


def test_a_copy_is_called_by_its_address_and_deleted(bucket):  # noqa: F811
    stores.write("gs://bucket/run/config.json", b"{}")
    told = []
    with store_copy.reading("gs://bucket/run/", told.append) as (folder, tell):
        tell(f"{folder}/config.json is here")
        assert (folder / "config.json").read_bytes() == b"{}"
    assert told == ["gs://bucket/run/config.json is here"]
    assert not folder.exists()


def test_a_full_disk_is_not_taken_for_the_store(bucket, monkeypatch):  # noqa: F811
    stores.write("gs://bucket/run/config.json", b"{}")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store_copy.local_copies, "fetch", full)
    with (
        pytest.raises(UserError, match=r"^--workdir=gs://bucket/run: no space for a temporary copy in /.*set TMPDIR$"),
        store_copy.opened("gs://bucket/run"),
    ):
        pytest.fail("there is a copy")
