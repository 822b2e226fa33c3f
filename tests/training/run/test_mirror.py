"""The local copy of a workdir in an object store, and what is written back."""

import contextlib
import re
import shutil
import sqlite3
import threading
import time

import pytest

from convs2s_jax.core import stores
from convs2s_jax.core.errors import UserError
from convs2s_jax.training.run import mirror, store_copy
from convs2s_jax.training.run.checkpoints import checkpoint, restoring
from convs2s_jax.training.run.mirror import Mirror
from convs2s_jax.training.run.processes.interrupts import EndedAtOnceError
from tests.checkpoints import ABSTRACT, ACCEPT, assert_bitwise, position, state
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
    found = Mirror(RUN, folder, {}, lambda: True)
    found._sent.clear()
    return found


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
    known = mirror.fetch(RUN, other)
    assert sorted(known) == ["10", "20", "30"]
    assert_bitwise(restored(other).state, restored(copy).state)
    assert [path.parent.name for path in (other / "checkpoints").glob("*/params")] == ["30"]
    assert not (other / "samples").exists()


def test_a_database_of_a_tracker_is_whole_in_the_store_and_fetched_again(bucket, tmp_path):  # noqa: F811
    """Also where SQLite has committed rows beside the database, or a killed start has left such files behind."""
    here, other = tmp_path / "here", tmp_path / "other"
    here.mkdir()
    other.mkdir()
    with contextlib.closing(sqlite3.connect(here / "mlflow.db")) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("CREATE TABLE metrics (value)")
        database.execute("INSERT INTO metrics VALUES (1)")
        database.commit()
        assert (here / "mlflow.db-wal").exists()
        mirrored(here).push()
    assert stores.names(RUN) == ["lock", "mlflow.db"]
    (other / "mlflow.db-wal").write_text("of another state")
    known = mirror.fetch(RUN, other)
    assert sorted(path.name for path in other.iterdir()) == [".origin", "mlflow.db"]
    with contextlib.closing(sqlite3.connect(other / "mlflow.db")) as database:
        assert database.execute("SELECT value FROM metrics").fetchall() == [(1,)]
    before, again = stores.read(f"{RUN}/mlflow.db"), Mirror(RUN, other, known, lambda: True)
    (other / "mlflow.db").write_text("no database")
    (other / "train.log").write_text("a line\n")
    again.push()
    assert stores.read(f"{RUN}/train.log") == b"a line\n"
    assert stores.read(f"{RUN}/mlflow.db") == before


@pytest.mark.parametrize(("kind", "waits"), [(EndedAtOnceError, False), (KeyboardInterrupt, True), (OSError, True)])
def test_only_a_second_signal_does_not_wait_for_the_store(bucket, copy, monkeypatch, kind, waits):  # noqa: F811
    writing, go, write = threading.Event(), threading.Event(), stores.write

    def slow(address, content):
        if not writing.is_set():
            writing.set()
            go.wait(0.3 if waits else 5)
        write(address, content)

    monkeypatch.setattr(stores, "write", slow)
    monkeypatch.setattr(mirror, "PERIOD", 0.01)
    with contextlib.suppress(kind), mirrored(copy) as mine:
        mine.start()
        assert writing.wait(20)
        raise kind
    assert mine._thread.is_alive() != waits
    assert steps() == (["10", "20", "30"] if waits else [])
    go.set()
    mine._thread.join()


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
    known = mirror.fetch(RUN, other)
    assert int(restored(other).state.step) == 20
    if kept:
        assert known["30"] is None
    with checkpoint.manager(other / "checkpoints", keep=9) as checkpoints:  # the run does step 30 again
        checkpoint.save(checkpoints, state(30), position(30), scores={"loss": 2.0})
        checkpoint.wait(checkpoints)
    Mirror(RUN, other, known, lambda: True).push()
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
    checkpoint.put_aside(copy / "checkpoints" / "30", "30.damaged")
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
        Mirror(RUN, copy, {}, lambda: False).settle()
    assert re.search(
        rf"^--workdir={RUN} cannot be written \({why}\); retrying for up to 0 min", capsys.readouterr().err
    )
    assert stores.names(RUN) == ["lock"]


def test_an_outage_and_its_end_are_told(bucket, copy, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setattr(mirror, "PERIOD", 0.01)
    answers = iter([False, False, True, True])
    mine = Mirror(RUN, copy, {}, lambda: next(answers, True))
    mine.start()
    end = time.monotonic() + 60
    told = ""
    while "again" not in told:
        assert time.monotonic() < end
        time.sleep(0.01)
        told += capsys.readouterr().err
    mine.close()
    first, second = told.splitlines()
    assert first.startswith(f"--workdir={RUN} cannot be written now (the lock could not be renewed")
    assert second == f"--workdir={RUN} can be written again"


def test_a_reader_fetches_only_the_parameters_that_it_reads(bucket, copy):  # noqa: F811
    mirrored(copy).push()
    with store_copy.opened(RUN) as folder:
        params, found = restoring.restore_params(
            folder / "checkpoints", ABSTRACT.params, step=None, metric="loss", check=ACCEPT, tell=print
        )
        assert found["step"] == 20
        assert_bitwise(params, state(20).params)
        fetched = {path.parent.name for path in (folder / "checkpoints").glob("*/params")}
        assert fetched == {"20"}
        assert not list((folder / "checkpoints").glob("*/optimizer"))
    assert not folder.exists()


def test_a_reader_goes_on_where_training_deletes_what_it_reads(bucket, copy, monkeypatch):  # noqa: F811
    mine = mirrored(copy)
    mine.push()
    complete, told = store_copy.fetch_item, []

    def late(item):
        if (copy / "checkpoints" / "20").exists():
            with checkpoint.manager(copy / "checkpoints", keep=9) as checkpoints:
                checkpoint.save(checkpoints, state(40), position(40), scores={"loss": 0.1})
                checkpoint.wait(checkpoints)
            for step in ("10", "20", "30"):
                shutil.rmtree(copy / "checkpoints" / step)
            mine.push()
        complete(item)

    monkeypatch.setattr(store_copy, "fetch_item", late)
    with store_copy.opened(RUN) as folder:
        asked = {"step": None, "metric": "loss", "check": ACCEPT, "tell": told.append}
        params, found = restoring.restore_params(folder / "checkpoints", ABSTRACT.params, **asked)
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
    assert mirror.fetch(RUN, tmp_path / "copy") == {}
    stores.delete(f"{RUN}/lock")
    with pytest.raises(OSError, match="its objects are not listed"):
        mirror.fetch(RUN, tmp_path / "copy")
