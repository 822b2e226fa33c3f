"""Compiled programs beside a run in an object store."""

import os

from convs2s_jax.core import stores
from convs2s_jax.training.run import stored_programs
from convs2s_jax.training.run.mirror import Mirror
from convs2s_jax.training.run.stored_programs import StoredPrograms
from tests.stores import bucket, requests  # noqa: F401  (fixtures)

RUN = "gs://bucket/run"


def compiled(copy, name, *, age):
    """A program in the local copy that was written so many seconds ago."""
    place = copy / "compiled" / "processor" / name
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(name.encode())
    changed = place.stat().st_mtime - age
    os.utime(place, (changed, changed))


def test_another_machine_gets_what_was_compiled(bucket, requests, tmp_path):  # noqa: F811
    here, there = tmp_path / "here", tmp_path / "there"
    compiled(here, "old", age=60)
    compiled(here, "being-written", age=0)
    mine = StoredPrograms(RUN, here)
    mine.push()
    assert requests == [("write", f"{RUN}/compiled/processor/old")]
    compiled(here, "being-written", age=60)
    mine.push()
    stored_programs.fetch(RUN, there)
    assert {path.name: path.read_bytes() for path in there.rglob("*") if path.is_file()} == {
        "old": b"old",
        "being-written": b"being-written",
    }
    requests.clear()
    mine.push()
    StoredPrograms(RUN, there).push()  # another start knows what is there
    assert requests == []


def test_they_are_written_back_with_the_run_after_everything_else(bucket, requests, tmp_path):  # noqa: F811
    compiled(tmp_path, "one", age=60)
    (tmp_path / "train.log").write_text("a line\n")
    found = Mirror(RUN, tmp_path, {}, lambda: True)
    found._sent.clear()
    found.push()
    assert requests == [("write", f"{RUN}/train.log"), ("write", f"{RUN}/compiled/processor/one")]


def test_a_program_that_is_deleted_meanwhile_is_no_error(bucket, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(stores, "names", lambda _: ["processor/gone"])
    stored_programs.fetch(RUN, tmp_path)
    assert not list(tmp_path.rglob("gone"))
