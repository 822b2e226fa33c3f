"""The local copy of a workdir in an object store, and what is written back."""

import errno
import os
import re
import shutil

import jax
import pytest

from convs2s_jax.core import compiled_programs, local_copies, stores
from convs2s_jax.core.errors import UserError
from convs2s_jax.training.run import mirror, store_copy
from convs2s_jax.training.run.checkpoints import checkpoint, restoring
from convs2s_jax.training.run.mirror import Mirror
from tests.checkpoints import ABSTRACT, ACCEPT, assert_bitwise, position, restore_params, state
from tests.stores import bucket, requests  # noqa: F401  (fixtures)

RUN = "gs://bucket/run"


@pytest.fixture(autouse=True)
def locked(bucket):  # noqa: F811
    """A process holds the workdir."""
    stores.write(f"{RUN}/lock", b"{}")


@pytest.fixture
def copy(saved, tmp_path):
    """A local copy with checkpoints 10, 20 (the best) and 30, and other files; nothing is in the store yet."""
    folder = tmp_path / "copy"
    shutil.copytree(saved.parent, folder)
    for name, text in {
        "config.json": "{}",
        "metrics.jsonl": "1\n2\ntorn",
        "cache/a": "a",
        "lock": "b",
        "samples/1.jsonl": "c\n",
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


def mirrored(folder):
    """The mirror of a folder of which nothing is in the store."""
    return Mirror(RUN, folder, ([], {}), lambda: True)


def steps():
    """The checkpoints in the store that are complete."""
    return [step for step, names in store_copy.steps_of(stores.names(RUN)).items() if store_copy.MARK in names]


def restored(folder):
    return restoring.restore(folder / "checkpoints", ABSTRACT, check=ACCEPT, tell=print)


def test_what_is_written_back_is_fetched_again(bucket, copy, tmp_path):  # noqa: F811
    mirrored(copy).push()
    assert steps() == ["10", "20", "30"]
    assert stores.read(f"{RUN}/metrics.jsonl") == b"1\n2\n"  # whole lines
    assert stores.read(f"{RUN}/lock") == b"{}"
    assert not stores.names(RUN, "cache")
    other = tmp_path / "other"
    other.mkdir()
    (other / "samples").mkdir()
    assert sorted(mirror.fetch(RUN, other)[1]) == ["10", "20", "30"]
    assert_bitwise(restored(other)[0], restored(copy)[0])
    assert [path.parent.name for path in (other / "checkpoints").glob("*/params")] == ["30"]
    assert not (other / "samples").exists()


def test_a_database_and_programs_are_written_at_the_end_and_fetched_again(bucket, used, requests, tmp_path):  # noqa: F811
    here, there = tmp_path / "here", tmp_path / "there"
    (used(here) / "one").write_text("compiled")
    for name in ("mlflow.db", "mlflow.db-wal", "train.log"):
        (here / name).write_text(f"{name}\n")
    mine = mirrored(here)
    mine.push()
    assert stores.names(RUN) == ["lock", "train.log"]
    mine.start()
    mine.close()
    program = f"compiled/{compiled_programs.processor()}/one"
    assert stores.names(RUN) == [program, "lock", "mlflow.db", "train.log"]
    fetched_into = used(there)
    (there / "mlflow.db-wal").write_text("of another state")
    fetched = mirror.fetch(RUN, there)
    assert [path.name for path in fetched_into.iterdir()] == ["one"]
    assert sorted(path.name for path in there.iterdir()) == [".origin", "compiled", "mlflow.db", "train.log"]
    requests.clear()
    again = Mirror(RUN, there, fetched, lambda: True)
    again.start()
    again.close()
    used(tmp_path / "third")  # as with JAX_COMPILATION_CACHE_DIR
    (tmp_path / "fourth").mkdir()
    mirror.fetch(RUN, tmp_path / "fourth")
    assert requests == []
    assert not list((tmp_path / "fourth").rglob("one"))


def test_a_checkpoint_is_complete_with_its_last_object_and_goes_with_its_first(bucket, copy, requests):  # noqa: F811
    mine = mirrored(copy)
    mine.push()
    written = [address for action, address in requests if "/checkpoints/20/" in address]
    assert written[-1] == f"{RUN}/checkpoints/20/{store_copy.MARK}"
    assert len(written) == len(set(written)) == len([p for p in (copy / "checkpoints/20").rglob("*") if p.is_file()])
    assert requests[0] == ("write", f"{RUN}/config.json")
    assert requests.index(("write", f"{RUN}/metrics.jsonl")) < requests.index(("write", written[0]))
    requests.clear()
    shutil.rmtree(copy / "checkpoints" / "10")
    mine.push()
    assert requests[0] == ("delete", f"{RUN}/checkpoints/10/{store_copy.MARK}")
    assert {action for action, _ in requests} == {"delete"}
    assert steps() == ["20", "30"]
    requests.clear()
    mine.push()
    assert requests == []


@pytest.mark.parametrize("kept", [0, 1, 7, 15])
def test_a_checkpoint_that_is_cut_off_does_not_count(bucket, copy, tmp_path, monkeypatch, kept):  # noqa: F811
    """The process is killed after some objects of checkpoint 30."""
    write, count = stores.write, 0

    def dying(address, content):
        nonlocal count
        count += "/30/" in address
        if count > kept:
            raise KeyboardInterrupt
        write(address, content)

    mine = mirrored(copy)
    monkeypatch.setattr(stores, "write", dying)
    with pytest.raises(KeyboardInterrupt):
        mine.push()
    monkeypatch.setattr(stores, "write", write)
    other = tmp_path / "other"
    other.mkdir()
    fetched = mirror.fetch(RUN, other)
    assert int(restored(other)[0].step) == 20
    if kept:
        assert fetched[1]["30"] is None
    with checkpoint.Checkpoints(other / "checkpoints", keep=9) as checkpoints:  # the run does step 30 again
        checkpoint.save(checkpoints, state(30), position(30), scores={"loss": 2.0})
        checkpoint.wait(checkpoints)
    Mirror(RUN, other, fetched, lambda: True).push()
    found = store_copy.steps_of(stores.names(RUN))["30"]
    here = [
        str(path.relative_to(other / "checkpoints/30"))
        for path in (other / "checkpoints/30").rglob("*")
        if path.is_file()
    ]
    assert sorted(found) == sorted(here)  # nothing is left of the first try


def test_a_damaged_checkpoint_goes_aside_in_the_store_too(bucket, copy, tmp_path):  # noqa: F811
    mine = mirrored(copy)
    mine.push()
    checkpoint.put_aside(copy / "checkpoints" / "30")
    (copy / "checkpoints" / "30.damaged" / store_copy.MARK).unlink()
    mine.push()
    there = store_copy.steps_of(stores.names(RUN))
    assert sorted(there) == ["10", "20", "30.damaged"]
    assert there["30.damaged"]
    other = tmp_path / "other"
    other.mkdir()
    again = Mirror(RUN, other, mirror.fetch(RUN, other), lambda: True)
    assert sorted(path.name for path in (other / "checkpoints").iterdir()) == ["10", "20"]
    again.push()
    assert sorted(store_copy.steps_of(stores.names(RUN))) == ["10", "20", "30.damaged"]


def test_nothing_is_deleted_before_what_is_newer_is_there(bucket, copy, monkeypatch):  # noqa: F811
    mine = mirrored(copy)
    shutil.move(copy / "checkpoints" / "30", copy / "30")
    mine.push()
    shutil.move(copy / "30", copy / "checkpoints" / "30")
    for step in ("10", "20"):
        shutil.rmtree(copy / "checkpoints" / step)
    write = stores.write

    def failing(address, content):
        if "/30/params" in address:
            raise OSError(5, "no network", address)
        write(address, content)

    monkeypatch.setattr(stores, "write", failing)
    with pytest.raises(OSError, match="no network"):
        mine.push()
    assert steps() == ["10", "20"]
    monkeypatch.setattr(stores, "write", write)
    mine.settle()
    assert steps() == ["30"]


def test_who_may_not_write_does_not(bucket, copy, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setattr(mirror, "PATIENCE", 0.0)
    why = r"the lock could not be renewed: is the store reachable\?"
    with pytest.raises(UserError, match=rf"cannot be written: {why}; the checkpoints written so far"):
        Mirror(RUN, copy, ([], {}), lambda: False).settle()
    assert re.search(
        rf"^--workdir={RUN} cannot be written \({why}\); retrying for up to 0 min", capsys.readouterr().err
    )
    assert stores.names(RUN) == ["lock"]


def test_a_reader_goes_on_where_training_deletes_what_it_reads(bucket, copy, monkeypatch):  # noqa: F811
    mine = mirrored(copy)
    mine.push()
    complete, told = store_copy.fetch_item, []

    def late(item):
        if (copy / "checkpoints" / "20").exists():
            with checkpoint.Checkpoints(copy / "checkpoints", keep=9) as checkpoints:
                checkpoint.save(checkpoints, state(40), position(40), scores={"loss": 0.1})
                checkpoint.wait(checkpoints)
            for step in ("10", "20", "30"):
                shutil.rmtree(copy / "checkpoints" / step)
            mine.push()
        complete(item)

    monkeypatch.setattr(store_copy, "fetch_item", late)
    with store_copy.opened(RUN) as folder:
        asked = {"step": None, "metric": "loss", "check": ACCEPT, "tell": told.append}
        params, found = restore_params(folder / "checkpoints", ABSTRACT.params, **asked)
    assert found["step"] == 40
    assert_bitwise(params, state(40).params)
    assert told == []


def test_a_workdir_that_is_not_there_is_named(bucket):  # noqa: F811
    with (
        pytest.raises(UserError, match=r"^--workdir=gs://bucket/run: there is no such folder$"),
        store_copy.opened(RUN),
    ):
        pass


def test_a_workdir_whose_claim_is_not_listed_is_not_taken_for_an_empty_one(bucket, tmp_path):  # noqa: F811
    (tmp_path / "copy").mkdir()
    assert mirror.fetch(RUN, tmp_path / "copy") == (["lock"], {})
    stores.delete(f"{RUN}/lock")
    with pytest.raises(OSError, match="its objects are not listed"):
        mirror.fetch(RUN, tmp_path / "copy")


@pytest.fixture
def used():
    """Tells JAX to cache its programs in a local copy."""

    def use(copy):
        folder = copy / "compiled" / compiled_programs.processor()
        folder.mkdir(parents=True, exist_ok=True)
        jax.config.update("jax_compilation_cache_dir", str(folder))
        return folder

    before = jax.config.jax_compilation_cache_dir
    yield use
    jax.config.update("jax_compilation_cache_dir", before)


def test_a_copy_that_cannot_be_written_is_not_taken_for_the_store(bucket, monkeypatch):  # noqa: F811
    sentence = ": its local copy in .*/caches/convs2s_jax-stores cannot be written: .* free disk space or set "

    def fails(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    stores.delete(f"{RUN}/lock")
    stores.write(f"{RUN}/config.json", b"{}")
    monkeypatch.setattr(local_copies, "fetch", fails)
    with pytest.raises(UserError, match=f"^--workdir={RUN}{sentence}"), mirror.opened(RUN):
        pytest.fail("opened")
    assert stores.names(RUN) == ["config.json"]


def test_a_checkpoint_whose_arrays_are_not_listed_is_not_damaged(bucket, copy, tmp_path, monkeypatch):  # noqa: F811
    mirrored(copy).push()
    other, names = tmp_path / "other", stores.names
    other.mkdir()
    mirror.fetch(RUN, other)
    with monkeypatch.context() as patch:
        patch.setattr(stores, "names", lambda folder, *rest: [] if "/30/params" in folder else names(folder, *rest))
        with pytest.raises(UserError, match=f"^--workdir={RUN} cannot be used: its objects are not listed"):
            restored(other)
    assert int(restored(other)[0].step) == 30
