"""Signals: the first is noted, the second ends the program, and afterwards all is as it was."""

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from convs2s_jax.training.run.processes import interrupts as module
from convs2s_jax.training.run.processes.interrupts import (
    SIGNALS,
    Interrupts,
    StoppedBeforeUpdateError,
)
from tests.helpers import drills_but


@pytest.mark.parametrize("number", SIGNALS)
def test_handler_and_thread_report_a_signal_once(number, capsys):
    with Interrupts(own_process=True) as interrupts:
        interrupts.begin()
        os.kill(os.getpid(), number)
        assert interrupts.received == number.name
    for thread in threading.enumerate():
        if thread.name == "interrupts":
            thread.join()
    assert capsys.readouterr().err == f"{number.name}: saving before exit; send it again to exit immediately\n"


@pytest.mark.parametrize("first", SIGNALS)
@pytest.mark.parametrize("second", SIGNALS)
def test_second_signal_ends_the_program(first, second):
    with Interrupts() as interrupts:
        interrupts.begin()
        os.kill(os.getpid(), first)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), second)
        assert interrupts.received == first.name


@pytest.mark.parametrize("number", SIGNALS)
def test_before_the_first_update_a_signal_ends_the_work_at_once(number, capsys):
    with pytest.raises(StoppedBeforeUpdateError), Interrupts() as interrupts:
        os.kill(os.getpid(), number)
    assert interrupts.received == number.name
    assert capsys.readouterr().err == f"{number.name}: stopped before the first update; there was nothing to save\n"


@contextlib.contextmanager
def sighup_is(handler):
    """Whatever it is for pytest, which may run under nohup."""
    before = signal.signal(signal.SIGHUP, handler)
    try:
        yield
    finally:
        after = signal.signal(signal.SIGHUP, before)
    assert after == handler


def test_a_closed_terminal_saves_and_other_signals_count_from_there(capsys):
    """The kernel and the shell both send SIGHUP, and a session manager SIGTERM as well."""
    with sighup_is(signal.SIG_DFL), Interrupts() as interrupts:
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL
        interrupts.begin()
        for number in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), number)
        assert interrupts.received == "SIGTERM"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    told = "SIGHUP: saving before exit\nSIGTERM: saving before exit; send it again to exit immediately\n"
    assert capsys.readouterr().err == told


def test_with_nohup_a_closed_terminal_changes_nothing():
    with sighup_is(signal.SIG_IGN), Interrupts() as interrupts:
        interrupts.begin()
        os.kill(os.getpid(), signal.SIGHUP)
        assert interrupts.received == ""


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_signal_while_a_message_is_written_saves(number, monkeypatch):
    """Python's writer refuses to be called from the handler that interrupts it."""

    def write(_):
        raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stderr>'>")

    monkeypatch.setattr(sys, "stderr", SimpleNamespace(write=write))
    with sighup_is(signal.SIG_DFL), Interrupts() as interrupts:
        interrupts.begin()
        os.kill(os.getpid(), number)
        assert interrupts.received == number.name


STUCK = """
import contextlib, ctypes
from convs2s_jax.training.run.processes import interrupts

interrupts.PATIENCE = 0.5
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(256)
with contextlib.suppress(interrupts.StoppedBeforeUpdateError), interrupts.Interrupts(own_process=True) as entered:
    {then}
    print("begun", flush=True)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)  # for ever, whatever signal arrives
"""


@pytest.fixture
def stuck():
    """A function that starts a process within a library call, with a statement before the call."""
    processes, timers = [], []

    def start(then="pass"):
        code = [sys.executable, "-c", STUCK.format(then=then)]
        processes.append(subprocess.Popen(code, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        timers.append(threading.Timer(30, processes[0].kill))  # a pipe without a line would be read for ever
        timers[0].start()
        assert processes[0].stdout.readline() == "begun\n"
        time.sleep(0.5)  # it is locked by then
        return processes[0]

    yield start
    for process, timer in zip(processes, timers, strict=True):
        timer.cancel()
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def test_a_process_within_a_library_is_ended_from_outside(stuck):
    """The handler waits until the main thread returns to Python, which learning and compiling do not."""
    process = stuck()
    process.send_signal(signal.SIGTERM)
    _, told = process.communicate(timeout=30)
    assert process.returncode == 0
    assert told == "SIGTERM: stopped before the first update; there was nothing to save\n"


@pytest.mark.parametrize("number", drills_but(SIGNALS, kept=[signal.SIGTERM]))
def test_a_first_signal_is_told_and_a_second_one_ends_a_process_within_a_library(number, stuck):
    """As a program of a new batch shape is compiled after the first update."""
    process = stuck("entered.begin()")
    process.send_signal(number)
    assert process.stderr.readline() == f"{number.name}: saving before exit; send it again to exit immediately\n"
    time.sleep(0.6)  # one that comes sooner belongs to the first
    process.send_signal(number)
    assert process.communicate(timeout=30) == ("", "")
    assert process.returncode == 130


@pytest.mark.parametrize(("gap", "ended"), [(0.02, []), (1.0, [130])])
def test_a_signal_that_comes_twice_at_once_is_one(gap, ended, monkeypatch, capsys):
    """As launchers send it to a process and to its group; during a step, the handler runs once for both."""
    times, ends = itertools.count(step=gap), []
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 9 + next(times)))
    monkeypatch.setattr(module, "_end", ends.append)
    interrupts = Interrupts(own_process=True)
    interrupts.begin()
    ours, theirs = socket.socketpair()
    ours.send(bytes([signal.SIGTERM, signal.SIGTERM]))
    ours.close()
    interrupts._watch(theirs)
    assert ends == ended
    assert capsys.readouterr().err == "SIGTERM: saving before exit; send it again to exit immediately\n"


def test_handlers_are_restored_after_an_error_too():
    class Broken(Exception):
        pass

    def handler(number, frame):
        raise AssertionError("not to be called")

    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        with contextlib.suppress(Broken), Interrupts():
            assert all(signal.getsignal(number) is not handler for number in SIGNALS)
            raise Broken
        assert all(signal.getsignal(number) is handler for number in SIGNALS)
    finally:
        for number, old in before.items():
            signal.signal(number, old)
