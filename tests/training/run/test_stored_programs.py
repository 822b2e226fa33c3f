"""Compiled programs beside a run in an object store."""

import os
import stat
import zlib

import jax
import pytest

from convs2s_jax.core import compiled_programs, stores
from convs2s_jax.training.run import mirror
from convs2s_jax.training.run.mirror import Mirror
from tests.stores import bucket, requests  # noqa: F401  (fixtures)

RUN = "gs://bucket/run"
THERE = f"{RUN}/compiled/{compiled_programs.processor()}"
NAMES = [f"program-{number}" for number in range(9)]


@pytest.fixture
def used():
    """Tells JAX to keep its programs in a local copy."""

    def use(copy):
        mirror.programs_of(copy).mkdir(parents=True, exist_ok=True)
        jax.config.update("jax_compilation_cache_dir", str(mirror.programs_of(copy)))
        return copy

    before = jax.config.jax_compilation_cache_dir
    yield use
    jax.config.update("jax_compilation_cache_dir", before)


def compiled(copy, name, *, age, cut=0):
    """A program in the local copy that was written so many seconds ago."""
    place = mirror.programs_of(copy) / name
    content = zlib.compress(name.encode())
    place.write_bytes(content[: len(content) - cut])
    changed = place.stat().st_mtime - age
    os.utime(place, (changed, changed))


def programs(copy):
    return {path.name: zlib.decompress(path.read_bytes()).decode() for path in mirror.programs_of(copy).iterdir()}


def test_another_machine_gets_what_was_compiled(bucket, requests, used, tmp_path):  # noqa: F811
    here = used(tmp_path / "here")
    for name in NAMES:
        compiled(here, name, age=60)
    compiled(here, "being-written", age=0)
    mine = mirror._Programs(RUN, here)
    mine.push()
    assert sorted(stores.names(THERE)) == NAMES
    mine.push(quiet=-1)  # at the end
    there = used(tmp_path / "there")
    mirror.fetch_programs(RUN, there)
    assert programs(there) == {name: name for name in [*NAMES, "being-written"]}
    requests.clear()
    mine.push()
    mirror._Programs(RUN, there).push()  # another start knows what is there
    assert requests == []


def test_no_file_outside_the_folder_of_programs_is_written(bucket, used, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr(stores, "names", lambda _: ["../planted", f"{tmp_path}/planted", "whole"])
    monkeypatch.setattr(stores, "read", lambda _: zlib.compress(b"code"))
    copy = used(tmp_path / "here")
    mirror.fetch_programs(RUN, copy)
    assert programs(copy) == {"whole": "code"}
    assert not list(tmp_path.rglob("planted"))


def test_what_a_kill_has_truncated_is_deleted(bucket, used, tmp_path):  # noqa: F811
    """JAX would compile the program at each start, and never write it again."""
    here = used(tmp_path / "here")
    compiled(here, "whole", age=60)
    compiled(here, "cut", age=60, cut=3)
    mirror._Programs(RUN, here).push()
    assert programs(here) == {"whole": "whole"}
    assert stores.names(THERE) == ["whole"]


def test_a_store_that_fails_is_told_once_and_stops_nothing(bucket, used, tmp_path, monkeypatch, capsys):  # noqa: F811
    def fail(*_):
        raise OSError(5, "no answer")

    copy = used(tmp_path)
    compiled(copy, "one", age=60)
    monkeypatch.setattr(stores, "names", fail)
    mine = mirror._Programs(RUN, copy)
    mine.push()
    mine.push()
    assert capsys.readouterr().err.count("could not be written back (no answer)") == 1
    mirror.fetch_programs(RUN, copy)
    assert "could not be fetched (no answer)" in capsys.readouterr().err


def test_another_folder_of_programs_is_left_alone(bucket, requests, used, tmp_path):  # noqa: F811
    """As with JAX_COMPILATION_CACHE_DIR."""
    copy = used(tmp_path / "copy")
    compiled(copy, "one", age=60)
    mirror._Programs(RUN, copy).push()
    requests.clear()
    used(tmp_path / "other")
    compiled(copy, "two", age=60)
    mirror._Programs(RUN, copy).push()
    mirror.fetch_programs(RUN, tmp_path / "third")
    assert requests == []
    assert not (tmp_path / "third").exists()


def test_they_are_written_back_when_a_run_ends(bucket, requests, used, tmp_path):  # noqa: F811
    copy = used(tmp_path)
    compiled(copy, "one", age=0.1)
    (copy / "train.log").write_text("a line\n")
    found = Mirror(RUN, copy, {}, lambda: True)
    found._sent.clear()
    found.start()
    found.close()
    written = [address for _, address in requests]
    assert written == [f"{RUN}/train.log", f"{THERE}/one"]


def test_the_copy_of_a_workdir_is_its_users_alone(tmp_path):
    before = jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", None)
    environment = {"XDG_CACHE_HOME": str(tmp_path), "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "all"}
    try:
        mirror.keep_programs(f"{RUN}/", environment)
        copy = mirror.folder_of(RUN, environment)
        assert jax.config.jax_compilation_cache_dir == str(mirror.programs_of(copy))
        assert stat.S_IMODE(copy.stat().st_mode) == 0o700
        assert jax.config.jax_persistent_cache_enable_xla_caches != "none"
    finally:
        jax.config.update("jax_compilation_cache_dir", before)
