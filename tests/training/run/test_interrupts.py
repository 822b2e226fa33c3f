"""Signals: the first is noted, the second ends the program, and afterwards all is as it was."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time

import pytest

from convs2s_jax.training.run.interrupts import SIGNALS, Interrupts, StoppedBeforeUpdateError


@pytest.mark.parametrize("number", SIGNALS)
def test_first_signal_is_only_noted(number):
    with Interrupts() as interrupts:
        interrupts.begin()
        assert interrupts.received == ""
        os.kill(os.getpid(), number)
        assert interrupts.received == number.name


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
    with Interrupts() as interrupts, pytest.raises(StoppedBeforeUpdateError):
        os.kill(os.getpid(), number)
    assert interrupts.received == number.name
    assert capsys.readouterr().err == f"{number.name}: stopped before the first update; there was nothing to save\n"


def test_a_signal_within_a_finaliser_is_not_lost():
    class Dying:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)
            sum(range(1000))  # the handler is called here, and what it raises is ignored

    def drop_and_wait():
        Dying()
        time.sleep(5)

    with Interrupts() as interrupts, pytest.raises(StoppedBeforeUpdateError):
        drop_and_wait()
    assert interrupts.received == "SIGTERM"


def test_a_signal_within_a_garbage_collection_is_not_lost(request):
    """Python ignores what a callback of the collector raises, and JAX has such a callback."""
    sent = []

    def callback(*_):
        if not sent:
            sent.append(True)
            os.kill(os.getpid(), signal.SIGTERM)

    def collect_and_wait():
        gc.collect()  # with many objects it ends after the signal has come again
        time.sleep(5)

    gc.callbacks.append(callback)
    request.addfinalizer(lambda: gc.callbacks.remove(callback))
    with Interrupts() as interrupts, pytest.raises(StoppedBeforeUpdateError):
        collect_and_wait()
    assert sent
    assert interrupts.received == "SIGTERM"


STUCK = """
import contextlib, ctypes
from convs2s_jax.training.run import interrupts

interrupts.PATIENCE = 0.5
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(256)
with contextlib.suppress(interrupts.StoppedBeforeUpdateError), interrupts.Interrupts(own_process=True):
    print("begun", flush=True)
    libc.pthread_mutex_lock(mutex)
    libc.pthread_mutex_lock(mutex)  # for ever, whatever signal arrives
"""


def test_a_process_within_a_library_is_ended_from_outside():
    """The handler waits until the main thread returns to Python, which learning and compiling do not."""
    process = subprocess.Popen([sys.executable, "-c", STUCK], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "begun\n"
        time.sleep(0.5)  # it is locked by then
        process.send_signal(signal.SIGTERM)
        _, told = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0
    assert told == "SIGTERM: stopped before the first update; there was nothing to save\n"


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


def test_an_end_at_once_waits_for_no_thread():
    program = (
        "import threading, time\n"
        "from convs2s_jax.training.run.distributed import leave\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "print('told')\n"
        "leave(130)\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout) == (130, "told\n")
