"""One trainer in a workdir of an object store."""

import dataclasses
import json
import threading
import time

import pytest

from convs2s_jax.core import stores
from convs2s_jax.core.errors import UserError
from convs2s_jax.training.run.locks import store_lock
from convs2s_jax.training.run.processes import holder
from convs2s_jax.training.run.processes.holder import this_process
from convs2s_jax.training.run.processes.interrupts import EndedAtOnceError
from tests.locks import StoppedClock
from tests.stores import bucket  # noqa: F401  (a fixture)

RUN = "gs://bucket/run"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(store_lock, "BEAT", 0.05)
    monkeypatch.setattr(store_lock, "SILENCE", 0.5)


def claim(name="lock-0", beats=0, **of_holder):
    """A claim of another process."""
    holder = dataclasses.replace(this_process(), **of_holder)
    record = {"holder": json.loads(holder.to_bytes()), "over": [], "beats": beats}
    stores.write(f"{RUN}/{name}", json.dumps(record).encode())


def ends_of_a_beat(name, monkeypatch):
    """A holder that was silent wakes, and beats: the statuses with which it ends its process."""
    old = object.__new__(store_lock._Claim)
    old._workdir, old._name, old._count, old._over, old._written = RUN, name, 0, {}, 0.0
    ended, stop = [], threading.Event()
    monkeypatch.setattr(holder.os, "_exit", lambda status: (ended.append(status), stop.set()))
    unnoticed = threading.Timer(60, stop.set)
    unnoticed.start()
    try:
        old.beat(stop)
    finally:
        unnoticed.cancel()
    return ended


def test_a_second_holder_is_refused_and_a_third_comes_after(bucket, monkeypatch):  # noqa: F811
    monkeypatch.setattr(store_lock, "SILENCE", 60.0)
    with store_lock.held(RUN) as is_fresh:
        assert is_fresh()
        with (
            pytest.raises(UserError, match=rf"^--workdir={RUN} is in use: process \d+ on .* is training there"),
            store_lock.held(RUN),
        ):
            pass
        assert len(stores.names(RUN, "lock-")) == 1
    assert stores.names(RUN) == []
    with store_lock.held(RUN):
        pass


def test_a_claim_stays_where_a_second_signal_ends_its_process(bucket):  # noqa: F811
    """A last object may be written a moment after the end."""
    with pytest.raises(EndedAtOnceError), store_lock.held(RUN):
        raise EndedAtOnceError
    assert len(stores.names(RUN, "lock-")) == 1
    with pytest.raises(KeyboardInterrupt), store_lock.held("gs://bucket/other"):
        raise KeyboardInterrupt
    assert stores.names("gs://bucket/other", "lock-") == []


def test_the_claim_of_a_process_that_has_ended_is_over_at_once(bucket, capsys):  # noqa: F811
    claim(process=2**22 + 1, started="1")
    with store_lock.held(RUN):
        assert "lock-0" not in stores.names(RUN)
    assert capsys.readouterr().err == ""


def test_a_silent_claim_of_another_machine_is_over_and_its_holder_ends(bucket, capsys, monkeypatch):  # noqa: F811
    claim(machine="another")
    with store_lock.held(RUN):
        assert "claims it; waiting 0 s for a sign of life" in capsys.readouterr().err
        assert ends_of_a_beat("lock-0", monkeypatch) == [holder.LOST]
    assert "has taken its place; this process exits" in capsys.readouterr().err


@pytest.mark.parametrize("third", [False, True])
def test_a_silent_holder_ends_too_when_who_took_its_place_has_gone(bucket, capsys, monkeypatch, third):  # noqa: F811
    """Without a claim of its own it would take the workdir a second time, beside a third process."""
    if third:
        claim("lock-3", machine="another")
    assert ends_of_a_beat("lock-0", monkeypatch) == [holder.LOST]
    assert ("another process has taken its place" in capsys.readouterr().err) is not third


def test_a_beating_claim_of_another_machine_is_respected(bucket, monkeypatch):  # noqa: F811
    monkeypatch.setattr(store_lock, "SILENCE", 30.0)  # the first beat ends the wait
    claim(machine="another")
    stop = threading.Event()

    def beat():
        count = 0
        while not stop.wait(0.05):
            count += 1
            claim(machine="another", beats=count)

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        with pytest.raises(UserError, match="is in use"), store_lock.held(RUN):
            pass
    finally:
        stop.set()
        thread.join()
    assert stores.names(RUN) == ["lock-0"]


def test_a_process_that_is_stopped_while_it_waits_still_hears_a_beat(bucket, monkeypatch):  # noqa: F811
    claim(machine="another")
    beat = {3: lambda: claim(machine="another", beats=1)}
    monkeypatch.setattr(holder, "time", StoppedClock(store_lock.SILENCE, beat))
    with pytest.raises(UserError, match="is in use"):
        store_lock._watch(RUN, store_lock._claims(RUN))


def test_of_two_that_claim_at_the_same_time_not_both_hold(bucket, monkeypatch):  # noqa: F811
    """The other claim appears between our first look and our own claim: the moment in which both could believe."""
    over = store_lock._over

    def then_another(workdir):
        found = over(workdir)
        claim(machine="another")
        return found

    monkeypatch.setattr(store_lock, "_over", then_another)
    with pytest.raises(UserError, match="is in use"), store_lock.held(RUN):
        pass
    assert stores.names(RUN) == ["lock-0"]  # ours is withdrawn


def test_a_claim_that_is_renewed_may_write_and_one_that_is_not_may_not(bucket, monkeypatch):  # noqa: F811
    def fails(*_):
        raise OSError("no network")

    with store_lock.held(RUN) as is_fresh:
        threading.Event().wait(0.6)
        assert any(is_fresh() or time.sleep(0.01) for _ in range(1000))  # the thread that beats may itself be late
        monkeypatch.setattr(stores, "write", fails)
        threading.Event().wait(0.6)
        assert not is_fresh()


def test_a_claim_that_the_store_does_not_list_is_no_hold(bucket, monkeypatch):  # noqa: F811
    """Other trainers would not be listed either."""
    monkeypatch.setattr(stores, "names", lambda *_: [])
    with pytest.raises(OSError, match="its objects are not listed"), store_lock.held(RUN):
        pytest.fail("held")
    monkeypatch.undo()
    assert not any(bucket.rglob("lock-*"))


def test_a_holder_goes_on_while_the_store_does_not_list_its_claim(bucket, monkeypatch):  # noqa: F811
    with store_lock.held(RUN):
        [name] = stores.names(RUN, "lock-")
        monkeypatch.setattr(stores, "names", lambda *_: [])
        monkeypatch.setattr(holder.os, "_exit", lambda status: pytest.fail(f"ended with {status}"))
        before = stores.read(f"{RUN}/{name}")
        end = time.monotonic() + 60
        while json.loads(stores.read(f"{RUN}/{name}"))["beats"] < json.loads(before)["beats"] + 3:
            assert time.monotonic() < end
            time.sleep(0.02)
