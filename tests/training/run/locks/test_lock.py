"""One process at a time holds a workdir, with flock and without; its death releases it."""

import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.training.run.locks import lease
from convs2s_jax.training.run.locks.lock import locked
from convs2s_jax.training.run.processes import holder
from tests import tiny
from tests.locks import CLAIMS, FLOCK, go, hold, holders


def test_another_process_is_refused_with_who_and_since_when_and_its_death_releases(tmp_path, mode, monkeypatch):
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
        monkeypatch.setattr(lease, "SILENCE", 60.0)
        began = time.monotonic()
        hold(tmp_path)
        assert time.monotonic() - began < 30  # not after a time of silence


def test_it_is_free_after_its_holder_and_after_an_error(tmp_path, mode):
    hold(tmp_path)
    with pytest.raises(ValueError, match="any"), locked(tmp_path):
        raise ValueError("any")
    with locked(tmp_path), pytest.raises(UserError, match="in use"):
        hold(tmp_path)
    hold(tmp_path)
    assert len(os.listdir(tmp_path)) == (0 if mode == FLOCK else 1)


def test_a_child_that_outlives_its_parent_does_not_hold_it(tmp_path):
    with holders(tmp_path, FLOCK, "fork") as (first,):
        assert go(first) == "held\n"
        child = int(first.stdout.readline())
        first.send_signal(signal.SIGKILL)
        first.wait()
        hold(tmp_path)
        os.kill(child, signal.SIGKILL)  # it was alive


@pytest.mark.drill
def test_a_child_of_a_child_keeps_the_files_that_it_inherits(tmp_path):
    """The number of the lock's descriptor, which a child closes, may be that of another file by the next fork."""
    code = """
        import os, sys
        from pathlib import Path
        from convs2s_jax.training.run.locks.lock import locked

        with locked(Path(sys.argv[1])):
            if os.fork() == 0:
                opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
                if os.fork() == 0:
                    for number in opened:
                        os.fstat(number)
                    os._exit(0)
                os._exit(os.waitstatus_to_exitcode(os.wait()[1]))
            status = os.waitstatus_to_exitcode(os.wait()[1])
        sys.exit(status)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(tmp_path)], cwd=tiny.ROOT, check=True)


@pytest.mark.drill
@pytest.mark.parametrize("kind", [FLOCK, CLAIMS])
def test_many_processes_hold_it_one_at_a_time(tmp_path, kind):
    with holders(tmp_path, kind, "50", number=3) as processes:
        said = [process.communicate(timeout=60) for process in processes]
    assert [error for _, error in said if "Traceback" in error] == []
    assert sum(text.count("held") for text, _ in said) >= 10


def test_a_lock_whose_file_was_just_removed_guards_nothing_and_is_taken_anew(tmp_path, monkeypatch):
    flock, first = fcntl.flock, [True]

    def removed_meanwhile(*args):
        if first.pop() if first else False:
            (tmp_path / "lock").unlink()
        flock(*args)

    monkeypatch.setattr(fcntl, "flock", removed_meanwhile)
    with locked(tmp_path), pytest.raises(UserError, match="is in use"):
        hold(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"host": 1}', b"\xff", b"[" * 100_000])
def test_a_holder_that_cannot_be_read_is_another_process(tmp_path, content):
    assert holder.Holder.from_bytes(content) is None
    assert str(holder.in_use(tmp_path, None)).startswith(
        f"--workdir={tmp_path} is in use: another process is training there"
    )
