"""Signals: the first is noted, the second ends the program, and afterwards all is as it was."""

import contextlib
import os
import signal
import subprocess
import sys

import pytest

from convs2s_jax.training.run.interrupts import SIGNALS, Interrupts


@pytest.mark.parametrize("number", SIGNALS)
def test_first_signal_is_only_noted(number):
    with Interrupts() as interrupts:
        assert interrupts.received == ""
        os.kill(os.getpid(), number)
        assert interrupts.received == number.name


@pytest.mark.parametrize("first", SIGNALS)
@pytest.mark.parametrize("second", SIGNALS)
def test_second_signal_ends_the_program(first, second):
    with Interrupts() as interrupts:
        os.kill(os.getpid(), first)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), second)
        assert interrupts.received == first.name


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
