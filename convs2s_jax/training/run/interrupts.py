"""SIGINT and SIGTERM: finish the step, save, leave.

With several processes a signal to one of them ends all at the same step: JAX's service hears SIGTERM and tells the
others; SIGINT is passed on as one.
"""

import signal
import sys
from types import FrameType
from typing import Any

from convs2s_jax.training.run import distributed

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class InterruptedWorkError(Exception):
    """Long work that can be left was left, because a signal came."""


class Interrupts:
    """While it is entered, the first signal is only noted; a second one ends the program at once.

    received: the name of the signal, or "". With several processes it is set by `at_step` alone, so that all agree.
    """

    def __init__(self) -> None:
        self.received = ""
        self._sent = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interrupts":
        if distributed.several():
            self._before = {signal.SIGINT: signal.signal(signal.SIGINT, self._pass_on)}
        else:
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def at_step(self, step: int) -> None:
        """To be called by all processes at every step."""
        if distributed.reached_signal(step):
            self.received = signal.SIGTERM.name

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self, *_: object) -> None:
        """Raise InterruptedWorkError if a signal came; for long work, once in a while."""
        if self.received:
            raise InterruptedWorkError

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.received:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name
        sys.stderr.write(f"{self.received}: saving before the end; once more to end at once\n")

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self._sent:
            raise KeyboardInterrupt
        self._sent = True
        sys.stderr.write("SIGINT: all processes save before the end; once more to end this one at once\n")
        distributed.pass_on()
