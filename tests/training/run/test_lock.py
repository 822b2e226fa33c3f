"""One process at a time holds a workdir, with flock and without; its death releases it."""

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

from convs2s_jax.core.errors import UserError
from convs2s_jax.training.run import holder, lease
from convs2s_jax.training.run.lock import locked
from tests import tiny
from tests.helpers import drills_but

PROGRAM = """
    import errno, fcntl, os, sys, time
    from pathlib import Path
    from convs2s_jax.core.errors import UserError
    from convs2s_jax.training.run import lease
    from convs2s_jax.training.run.lock import locked

    def unsupported(*_):
        raise OSError(errno.ENOTSUP, "Operation not supported")

    workdir, mode = Path(sys.argv[1]), sys.argv[2]
    if mode == "claims":
        fcntl.flock = unsupported
        lease.BEAT, lease.SILENCE = 0.05, 0.5

    def hold():
        print("trying", flush=True)
        sys.stdin.readline()
        try:
            with locked(workdir):
                print("held", flush=True)
                if "fork" in sys.argv and os.fork() == 0:
                    print(os.getpid(), flush=True)
                    time.sleep(60)
                sys.stdin.readline()
        except UserError as error:
            print(error, flush=True)

    def count():
        inside = workdir / "inside"
        for _ in range(int(sys.argv[3])):
            try:
                with locked(workdir):
                    os.close(os.open(inside, os.O_CREAT | os.O_EXCL))  # fails beside another holder
                    time.sleep(0.001)
                    inside.unlink()
                    print("held", flush=True)
            except UserError:
                time.sleep(0.002)

    count() if sys.argv[3].isdigit() else hold()
"""
FLOCK, CLAIMS = "flock", "claims"


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
    return proceed(process)


def proceed(process):
    process.stdin.write("\n")
    process.stdin.flush()
    return process.stdout.readline()


def hold(workdir):
    with locked(workdir):
        pass


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


def test_another_process_is_refused_with_who_and_since_when_and_its_death_releases(tmp_path, mode):
    with holders(tmp_path, mode) as (first,):
        assert go(first) == "held\n"
        names = sorted(os.listdir(tmp_path))
        day, hour = r"\d{4}-\d\d-\d\d", r"\d\d:\d\d:\d\d[+-]\d\d:\d\d"
        where = rf"process {first.pid} on {re.escape(socket.gethostname())}, since {day} {hour}"
        sentence = (
            rf"^--workdir={tmp_path} is in use: {where}, trains there; stop it, wait for its end, or name another"
        )
        for _ in range(3):
            with pytest.raises(UserError, match=sentence):
                hold(tmp_path)
        assert sorted(os.listdir(tmp_path)) == names
        first.send_signal(signal.SIGKILL)
        first.wait()
        began = time.monotonic()
        hold(tmp_path)
        assert time.monotonic() - began < 0.4  # not after a time of silence


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


def test_a_child_of_a_child_keeps_the_files_that_it_inherits(tmp_path):
    """The number of the lock's descriptor, which a child closes, may be that of another file by the next fork."""
    code = """
        import os, sys
        from pathlib import Path
        from convs2s_jax.training.run.lock import locked

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


@pytest.mark.parametrize("kind", drills_but([FLOCK, CLAIMS], [CLAIMS]))
def test_many_processes_hold_it_one_at_a_time(tmp_path, kind):
    with holders(tmp_path, kind, "50", number=3) as processes:
        said = [process.communicate(timeout=60) for process in processes]
    assert [error for _, error in said if "Traceback" in error] == []
    assert sum(text.count("held") for text, _ in said) >= 10


def stale(workdir, *, elsewhere):
    """A claim whose process has ended: on this machine, or on another one, whose processes cannot be seen."""
    with subprocess.Popen(["true"]) as ended:
        pass
    record = dataclasses.replace(holder.this_process(), process=ended.pid)
    record = dataclasses.replace(record, machine="another") if elsewhere else record
    (workdir / "lock-4").write_bytes(record.to_bytes() + b"17\n")


@pytest.mark.parametrize("elsewhere", drills_but([False, True], [True]))
def test_of_processes_that_take_over_a_stale_claim_exactly_one_wins(tmp_path, elsewhere):
    with holders(tmp_path, CLAIMS, number=3) as processes:
        stale(tmp_path, elsewhere=elsewhere)
        threads = [threading.Thread(target=lambda p=p: said.append(go(p))) for p in processes]
        said = []
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert said.count("held\n") == 1
    assert sum(" is in use: " in text for text in said) == 2, said


@pytest.mark.parametrize("mode", [CLAIMS], indirect=True)
@pytest.mark.parametrize("hours", [-5, 0, 5])
def test_a_claim_from_elsewhere_is_over_after_silence_whatever_the_clocks_say(tmp_path, mode, hours, capsys):
    stale(tmp_path, elsewhere=True)
    there = time.time() + 3600 * hours
    os.utime(tmp_path / "lock-4", (there, there))
    began = time.monotonic()
    hold(tmp_path)
    assert time.monotonic() - began >= lease.SILENCE
    assert "waiting 0 s for a sign of life" in capsys.readouterr().err


@pytest.mark.parametrize("mode", [CLAIMS], indirect=True)
@pytest.mark.parametrize("hours", drills_but([-5, 5], [5]))
def test_a_claim_from_elsewhere_that_beats_is_refused_whatever_the_clocks_say(tmp_path, mode, hours, monkeypatch):
    with holders(tmp_path, CLAIMS) as (first,):
        assert go(first) == "held\n"
        monkeypatch.setattr(holder, "_machine", lambda: "another")
        there = time.time() + 3600 * hours
        os.utime(tmp_path / "lock-1", (there, there))
        with pytest.raises(UserError, match=f"is in use: process {first.pid} "):
            hold(tmp_path)


@pytest.mark.parametrize("mode", [CLAIMS], indirect=True)
def test_a_claim_of_a_process_id_that_is_used_again_is_over(tmp_path, mode):
    record = dataclasses.replace(holder.this_process(), started="1")
    (tmp_path / "lock-1").write_bytes(record.to_bytes())
    hold(tmp_path)
    (tmp_path / "lock-2").write_bytes(holder.this_process().to_bytes())
    with pytest.raises(UserError, match=f"is in use: process {os.getpid()} "):
        hold(tmp_path)


@pytest.mark.parametrize("mode", [CLAIMS], indirect=True)
def test_a_claim_that_was_never_written_is_over_after_silence(tmp_path, mode):
    (tmp_path / "lock-1").touch()
    hold(tmp_path)
    assert os.listdir(tmp_path) == ["lock-2"]


def test_a_holder_whose_place_was_taken_ends(tmp_path):
    """It was stopped for longer than the silence that others wait for."""
    with holders(tmp_path, CLAIMS) as (first,):
        assert go(first) == "held\n"
        (tmp_path / "lock-2").write_bytes(holder.this_process().to_bytes())
        assert first.wait(timeout=20) == holder.LOST
        told = first.stderr.read()
    assert f"process {os.getpid()} on " in told
    assert "has taken its place; it ends here" in told


def test_a_lock_whose_file_was_just_removed_guards_nothing_and_is_taken_anew(tmp_path, monkeypatch):
    flock, first = fcntl.flock, [True]

    def removed_meanwhile(*args):
        if first.pop() if first else False:
            (tmp_path / "lock").unlink()
        flock(*args)

    monkeypatch.setattr(fcntl, "flock", removed_meanwhile)
    with locked(tmp_path), pytest.raises(UserError, match="is in use"):
        hold(tmp_path)


@pytest.mark.parametrize("mode", [CLAIMS], indirect=True)
def test_who_looked_before_others_came_and_went_is_refused(tmp_path, mode, monkeypatch):
    newest, first = lease._newest, [True]
    (tmp_path / "lock-3").write_bytes(holder.this_process().to_bytes())

    def looked_earlier(*args):
        return lease.Claim(1, lease.OVER) if first and first.pop() else newest(*args)

    monkeypatch.setattr(lease, "_newest", looked_earlier)
    with pytest.raises(UserError, match="is in use"):
        hold(tmp_path)
    assert os.listdir(tmp_path) == ["lock-3"]


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b'{"host": 1}', b"\xff", b"[" * 100_000])
def test_a_holder_that_cannot_be_read_is_another_process(tmp_path, content):
    assert holder.Holder.from_bytes(content) is None
    assert str(holder.in_use(tmp_path, None)).startswith(
        f"--workdir={tmp_path} is in use: another process trains there"
    )
