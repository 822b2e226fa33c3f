"""One process at a time holds a workdir: with flock, with a file alone, and with claims in an object store."""

import contextlib
import dataclasses
import errno
import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from convs2s_jax.core import stores
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.guard import LOST
from convs2s_jax.training.run import lock
from convs2s_jax.training.run.lock import locked, this_process
from tests import tiny
from tests.helpers import StoppedClock
from tests.stores import bucket  # noqa: F401  (a fixture)

RUN = "gs://bucket/run"
PROGRAM = """
    import contextlib, errno, fcntl, os, sys, time
    from pathlib import Path
    from convs2s_jax.core import stores
    from convs2s_jax.core.errors import UserError
    from convs2s_jax.training.run import lock

    def unsupported(*_):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    workdir, mode = Path(sys.argv[1]), sys.argv[2]
    if mode == "file":
        fcntl.flock = unsupported
    if mode == "store":
        lock.BEAT, lock.SILENCE = 0.05, 0.5
    stores.SPECS = {"gs": lambda name, _: {"driver": "file", "path": f"{workdir}/"}}

    def held():
        return lock.claimed("gs://bucket/run") if mode == "store" else lock.locked(workdir)

    def hold():
        print("trying", flush=True)
        sys.stdin.readline()
        try:
            with held():
                print("held", flush=True)
                sys.stdin.readline()
        except UserError as error:
            print(error, flush=True)

    def count():
        inside = workdir / "inside"
        for _ in range(int(sys.argv[3])):
            try:
                with held():
                    os.close(os.open(inside, os.O_CREAT | os.O_EXCL))  # fails beside another holder
                    time.sleep(0.001)
                    inside.unlink()
                    print("held", flush=True)
            except UserError:
                time.sleep(0.002)

    count() if sys.argv[3].isdigit() else hold()
"""
FLOCK, FILE, STORE = "flock", "file", "store"


def unsupported(*_):
    raise OSError(errno.ENOTSUP, "Operation not supported")


@pytest.fixture(params=[FLOCK, FILE])
def mode(request, monkeypatch):
    """The file system of this process has flock, or has none."""
    if request.param == FILE:
        monkeypatch.setattr(fcntl, "flock", unsupported)
    return request.param


def hold(workdir):
    with locked(workdir):
        pass


@contextlib.contextmanager
def holders(workdir, mode, what="hold", number=1):
    """Processes that wait for a line, try to hold the lock, say so, and hold it until the next line."""
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(workdir), mode, what]
    pipe = subprocess.PIPE
    with contextlib.ExitStack() as stack:
        started = []
        for _ in range(number):
            process = subprocess.Popen(command, cwd=tiny.ROOT, text=True, stdin=pipe, stdout=pipe, stderr=pipe)
            stack.callback(end, process)
            started.append(process)
        yield started


def end(process):
    process.kill()
    for stream in (process.stdin, process.stdout, process.stderr):
        with contextlib.suppress(BrokenPipeError):
            stream.close()
    process.wait()


def go(process):
    """Let a process try; what it says of it."""
    assert process.stdout.readline() == "trying\n"
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline()


def test_another_process_is_refused_with_who_and_since_when_and_its_death_releases(tmp_path, mode):
    with holders(tmp_path, mode) as (first,):
        assert go(first) == "held\n"
        names = sorted(os.listdir(tmp_path))
        day, hour = r"\d{4}-\d\d-\d\d", r"\d\d:\d\d:\d\d[+-]\d\d:\d\d"
        where = rf"process {first.pid} on {re.escape(socket.gethostname())}, since {day} {hour}"
        sentence = (
            rf"^--workdir={tmp_path} is in use: {where}, is training there; stop it, wait until it ends, or use another"
        )
        for _ in range(3):
            with pytest.raises(UserError, match=sentence):
                hold(tmp_path)
        assert sorted(os.listdir(tmp_path)) == names
        first.send_signal(signal.SIGKILL)
        first.wait()
        hold(tmp_path)


def test_it_is_free_after_its_holder_and_after_an_error(tmp_path, mode):
    hold(tmp_path)
    with pytest.raises(ValueError, match="any"), locked(tmp_path):
        raise ValueError("any")
    with locked(tmp_path), pytest.raises(UserError, match="in use"):
        hold(tmp_path)
    hold(tmp_path)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("content", [b"{", b"[" * 100_000, {"machine": "another"}], ids=str)
def test_without_flock_a_lock_of_whom_nothing_is_known_is_deleted_by_hand(tmp_path, monkeypatch, content):
    monkeypatch.setattr(fcntl, "flock", unsupported)
    if isinstance(content, dict):
        content = dataclasses.replace(this_process(), **content).to_bytes()
    (tmp_path / "lock").write_bytes(content)
    with pytest.raises(UserError, match=rf"is in use: .*; if it has ended, delete {tmp_path}/lock$") as told:
        hold(tmp_path)
    assert len(str(told.value)) < 500


@pytest.mark.drill
@pytest.mark.parametrize("kind", [FLOCK, FILE, STORE])
def test_many_processes_hold_it_one_at_a_time(tmp_path, kind):
    with holders(tmp_path, kind, "50", number=3) as processes:
        said = [process.communicate(timeout=240) for process in processes]
    assert [error for _, error in said if "Traceback" in error] == []
    assert sum(text.count("held") for text, _ in said) >= 10


def test_a_file_of_the_user_in_place_of_the_lock_is_left(tmp_path, mode):
    (tmp_path / "notes").write_text("text")
    (tmp_path / "lock").symlink_to("notes")
    with pytest.raises(
        UserError, match=f"^--workdir={tmp_path} cannot be written: lock is a link to another file; use an"
    ):
        hold(tmp_path)
    (tmp_path / "lock").unlink()
    (tmp_path / "lock").hardlink_to(tmp_path / "notes")
    with pytest.raises(UserError, match=r"its file lock is not a lock: rename it$|delete .*lock$"):
        hold(tmp_path)
    assert (tmp_path / "notes").read_text() == "text"


def test_a_workdir_that_was_moved_keeps_its_lock(tmp_path):
    with locked(tmp_path / "run") as is_there:
        assert is_there()
        (tmp_path / "run").rename(tmp_path / "moved")
        assert not is_there()
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "lock").touch()  # of another run
        assert not is_there()
    assert (tmp_path / "run" / "lock").exists()


def test_a_lock_whose_file_was_just_removed_guards_nothing_and_is_taken_anew(tmp_path, monkeypatch):
    flock, first = fcntl.flock, [True]

    def removed_meanwhile(*args):
        if first.pop() if first else False:
            (tmp_path / "lock").unlink()
        flock(*args)

    monkeypatch.setattr(fcntl, "flock", removed_meanwhile)
    with locked(tmp_path), pytest.raises(UserError, match="is in use"):
        hold(tmp_path)


LOCK = f"{RUN}/lock"


@pytest.fixture
def place(monkeypatch, bucket):  # noqa: F811
    """A store in which claims are short."""
    monkeypatch.setattr(lock, "BEAT", 0.05)
    monkeypatch.setattr(lock, "SILENCE", 0.5)


def another(*, count=0, **of_holder):
    """The claim of another process."""
    return dataclasses.replace(this_process(), **of_holder).to_bytes() + f"{count}\n".encode()


def refused():
    with pytest.raises(UserError, match=r" is in use: .* is training there; stop it") as told, lock.claimed(RUN):
        pytest.fail("held")
    return str(told.value)


def test_a_claim_is_refused_to_others_and_given_back(place):
    with lock.claimed(RUN) as is_fresh:
        assert is_fresh()
        assert f"process {os.getpid()} on" in refused()
    assert stores.names(RUN) == []
    with lock.claimed(RUN):
        pass


@pytest.mark.parametrize("ended", [{"process": 2**22 + 1}, {"started": "1"}], ids=["ended", "its number is used again"])
def test_the_claim_of_a_process_that_has_ended_is_over_at_once(place, capsys, ended):
    stores.write(LOCK, another(**ended))
    with lock.claimed(RUN):
        pass
    assert capsys.readouterr().err == ""


ENDLESS = b'{"host": "h", "since": "s", "machine": "m", "started": "s", "process": 1e999}'


@pytest.mark.parametrize("content", [b"{", b"[1]", b'{"host": 1}', b"\xff", b"[" * 100_000, ENDLESS, None])
def test_a_silent_claim_of_another_machine_or_of_nobody_known_is_over(place, capsys, content):
    stores.write(LOCK, content or another(machine="another"))
    began = time.monotonic()
    with lock.claimed(RUN):
        assert time.monotonic() - began >= lock.SILENCE
    assert "claims it; waiting 0 s for a sign of life" in capsys.readouterr().err


def test_who_was_silent_ends_once_another_process_has_its_place(place, capsys, monkeypatch):
    ended, stop = [], threading.Event()
    monkeypatch.setattr(lock.os, "_exit", lambda status: (ended.append(status), stop.set()))
    claim = lock._Claim(LOCK, f"--workdir={RUN}", lock.TRAINING)
    stores.write(LOCK, another(process=12345))
    unnoticed = threading.Timer(60, stop.set)
    unnoticed.start()
    claim.renew(stop)
    unnoticed.cancel()
    assert ended[:1] == [LOST]
    assert re.search(r"process 12345 on .* has taken its place; this process exits", capsys.readouterr().err)


@pytest.mark.parametrize("stopped", [False, True])
def test_a_claim_that_is_renewed_is_respected(place, monkeypatch, stopped):
    """Also by a process that was itself stopped while it waited for a sign of life."""
    stores.write(LOCK, another(machine="another"))
    renewal = {3: lambda: stores.write(LOCK, another(machine="another", count=1))}
    monkeypatch.setattr(lock, "time", StoppedClock(lock.SILENCE if stopped else 0.01, renewal))
    assert "in use: process" in refused()


def test_of_two_that_take_a_claim_at_the_same_time_one_is_refused(place, monkeypatch):
    read = stores.read_version

    def then_another(address):
        monkeypatch.setattr(stores, "read_version", read)
        found = read(address)
        stores.write(LOCK, another(machine="another"))
        return found

    monkeypatch.setattr(stores, "read_version", then_another)
    assert "in use: process" in refused()


@pytest.mark.parametrize("at", [1, 3])
def test_a_request_that_was_repeated_is_not_taken_for_that_of_another_process(bucket, monkeypatch, at):  # noqa: F811
    """The first one had succeeded, but its answer was lost."""
    write, asked = stores.write_if, []

    def repeated(*arguments):
        asked.append(write(*arguments))
        return write(*arguments) if len(asked) == at else asked[-1]

    monkeypatch.setattr(stores, "write_if", repeated)
    monkeypatch.setattr(lock, "BEAT", 0.02)
    monkeypatch.setattr(lock.os, "_exit", lambda status: pytest.fail(f"ended with {status}"))
    with lock.claimed(RUN):
        end = time.monotonic() + 60
        while len(asked) < at + 3:
            assert time.monotonic() < end
            time.sleep(0.01)
    assert stores.names(RUN) == []


def test_a_store_that_ignores_conditions_is_refused(bucket, monkeypatch):  # noqa: F811
    """As gcp-storage-emulator does. Two trainers could hold the workdir."""
    monkeypatch.setattr(stores, "write_if", lambda address, content, _: stores._written(address, content).generation)
    with pytest.raises(OSError, match="it ignores the conditions of writes"), lock.claimed(RUN):
        pytest.fail("held")
    assert stores.names(RUN) == []


def test_a_claim_that_cannot_be_renewed_may_not_write_and_ends_no_run(place, monkeypatch):
    def fails(*_):
        raise OSError(errno.EIO, "no network")

    with lock.claimed(RUN) as is_fresh:
        threading.Event().wait(0.6)
        assert any(is_fresh() or time.sleep(0.01) for _ in range(1000))  # the thread may itself be late
        monkeypatch.setattr(stores, "write_if", fails)
        threading.Event().wait(0.6)
        assert not is_fresh()
    assert stores.read(LOCK)  # until it has been silent
