"""Claims with a heartbeat, where a file system has no flock: which are over, and who takes their place."""

import dataclasses
import errno
import os
import subprocess
import threading
import time

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.training.run.locks import lease
from convs2s_jax.training.run.processes import holder
from tests.helpers import drills_but
from tests.locks import CLAIMS, StoppedClock, go, hold, holders


def stale(workdir, *, elsewhere):
    """A claim whose process has ended: on this machine, or on another one, whose processes cannot be seen."""
    with subprocess.Popen(["true"]) as ended:
        pass
    record = dataclasses.replace(holder.this_process(), process=ended.pid)
    record = dataclasses.replace(record, machine="another") if elsewhere else record
    (workdir / "lock-4").write_bytes(record.to_bytes() + b"17\n")


@pytest.mark.drill
@pytest.mark.parametrize("elsewhere", [False, True])
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
    monkeypatch.setattr(lease, "SILENCE", 30.0)  # the first beat ends the wait
    with holders(tmp_path, CLAIMS) as (first,):
        assert go(first) == "held\n"
        monkeypatch.setattr(holder, "_machine", lambda: "another")
        there = time.time() + 3600 * hours
        os.utime(tmp_path / "lock-1", (there, there))
        with pytest.raises(UserError, match=f"is in use: process {first.pid} "):
            hold(tmp_path)


def test_a_process_that_is_stopped_while_it_waits_still_hears_a_beat(tmp_path, monkeypatch):
    stale(tmp_path, elsewhere=True)
    claim = lease._newest(tmp_path, "lock")
    beat = {3: lambda: (tmp_path / "lock-4").write_bytes(claim.content + b"18\n")}
    monkeypatch.setattr(holder, "time", StoppedClock(lease.SILENCE, beat))
    with pytest.raises(UserError, match="is in use"):
        lease._watch(tmp_path, "lock", claim)


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
    assert "has taken its place; this process exits" in told


def test_a_file_system_that_fails_at_the_end_fails_no_run(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with lease.held(tmp_path, "lock"):
        descriptors = os.listdir("/proc/self/fd")
        monkeypatch.setattr(os, "ftruncate", fail)
    assert len(os.listdir("/proc/self/fd")) == len(descriptors) - 1
    assert lease.is_claimed(tmp_path, "lock")  # until it has been silent


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
