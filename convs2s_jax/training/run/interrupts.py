"""SIGINT and SIGTERM: finish the step, save and exit.

With several processes, a signal to one of them stops all at the same step. JAX's preemption service notices SIGTERM and
tells the other processes; SIGINT is turned into SIGTERM.
"""

import signal
import sys
from types import FrameType
from typing import Any

from convs2s_jax.training.run import distributed

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class InterruptedWorkError(Exception):
    """A signal arrived during long work that can be interrupted."""


class Interrupts:
    """Context manager: inside, the first signal is only recorded; a second one ends the program at once.

    Attributes:
      received: name of the signal, or "". With several processes only `at_step` sets it, so that all agree.
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
        """Ask whether a signal arrived; all processes must call this at every step."""
        if distributed.reached_signal(step):
            self.received = signal.SIGTERM.name

    def __exit__(self, *_: Any) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self, *_: object) -> None:
        """Raise InterruptedWorkError if a signal arrived; long work calls this from time to time."""
        if self.received:
            raise InterruptedWorkError

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.received:
            raise KeyboardInterrupt
        self.received = signal.Signals(number).name
        sys.stderr.write(f"{self.received}: saving before the end; once more to end at once\n")

    def _pass_on(self, _number: int, _frame: FrameType | None) -> None:
        if self._sent:
            raise KeyboardInterrupt
        self._sent = True
        sys.stderr.write("SIGINT: all processes save before the end; once more to end this one at once\n")
        distributed.pass_on()
