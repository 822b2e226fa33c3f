"""SIGINT and SIGTERM: finish the step, save, leave."""

import signal
import sys
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class InterruptedWorkError(Exception):
    """Long work that can be left was left, because a signal came."""


class Interrupts:
    """While it is entered, the first signal is only noted; a second one ends the program at once.

    received: the name of the signal, or "".
    """

    def __init__(self) -> None:
        self.received = ""
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interrupts":
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

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
