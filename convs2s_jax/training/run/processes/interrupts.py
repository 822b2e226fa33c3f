"""SIGINT and SIGTERM: before the first update, exit; later, finish the update, save and exit.

SIGHUP, which the end of a terminal sends, possibly more than once and together with SIGTERM, ends the process before
the first update as usual, unless it is ignored as with nohup. Later it saves, and further signals count from there.

With several processes a signal to one of them stops all at the same step, after the first update: JAX's preemption
service notices SIGTERM and agrees with the others on it; SIGINT is turned into SIGTERM.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from types import FrameType
from typing import Any, NoReturn

from jax.experimental import multihost_utils

from convs2s_jax.core.guard import INTERRUPTED, handlers
from convs2s_jax.training.run.processes import distributed

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 3.0
"""Seconds from a signal before the first update to the end of a process that is still in a library call."""
TOGETHER = 0.5
"""Seconds within which further signals belong to the first: launchers send one to a process and to its group."""


class InterruptedWorkError(Exception):
    """A signal arrived during long work that can be interrupted."""


class StoppedBeforeUpdateError(KeyboardInterrupt):
    """A signal arrived before the first update. Not an Exception, so that nothing mistakes it for a file error."""


class Interrupts:
    """Context manager that handles the first signal; a second one ends the program immediately.

    Before `begin` there is nothing to save, and a signal raises StoppedBeforeUpdateError in the main thread. After it,
    a signal is only recorded.

    Attributes:
      received: name of the signal, or "". With several processes only `ask` sets it, so that all agree.
    """

    def __init__(self, *, own_process: bool = False) -> None:
        """Handle signals inside the context only.

        Args:
          own_process: whether this process ends with the run. A second signal then ends it as a kill would, and a
            signal before the first update ends it even within a library call: learning vocabularies and compiling do
            not return to Python.
        """
        self.received = ""
        self._own_process = own_process
        self._begun, self._sent, self._hung_up = False, False, False
        self._asked = 0
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> "Interrupts":
        if distributed.is_multi_process():
            self._undo.enter_context(handlers({signal.SIGINT: self._pass_on}))
            return self
        if self._own_process:
            watched, woken = socket.socketpair()
            woken.setblocking(False)
            self._undo.enter_context(woken)
            self._undo.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False))
            threading.Thread(target=self._watch, args=(watched,), name="interrupts", daemon=True).start()
        self._undo.enter_context(handlers(dict.fromkeys(SIGNALS, self._note)))
        return self

    def begin(self) -> None:
        """Note that the first update is done: from now on a signal saves. May be called at every update."""
        if not self._begun:
            self._begun = True
            if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
                self._undo.enter_context(handlers({signal.SIGHUP: self._hang_up}))

    def ask(self) -> None:
        """Ask whether a signal arrived. All processes call this at the same places: they agree on the number of a call.

        The places are every update, every batch of a validation loss, and every round of translations.
        """
        self._asked += 1  # JAX compares it with the number agreed on, so none may be skipped
        if distributed.is_multi_process() and multihost_utils.reached_preemption_sync_point(self._asked):
            self.received = signal.SIGTERM.name

    def __exit__(self, *_: Any) -> None:
        self._undo.close()

    def check(self, *_: object) -> None:
        """Raise InterruptedWorkError if a signal arrived; long work calls this from time to time.

        With several processes a signal is known only after the next `ask`.
        """
        if self.received:
            raise InterruptedWorkError

    def check_together(self) -> None:
        """`ask`, then `check`: all processes raise at the same place, or none."""
        self.ask()
        self.check()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        """Handle a signal to a single process. In its own process, `_watch` tells of it and ends it."""
        name = signal.Signals(number).name
        if self.received not in ("", signal.SIGHUP.name):
            if not self._own_process:
                raise KeyboardInterrupt
            return
        self.received = name
        if not self._own_process:
            _tell(name, saves=self._begun)
        if not self._begun:
            raise StoppedBeforeUpdateError

    def _hang_up(self, _number: int, _frame: FrameType | None) -> None:
        if self.received or self._sent or self._hung_up:
            return
        self._hung_up = True
        _write("SIGHUP: saving before exit\n")
        if distributed.is_multi_process():
            signal.raise_signal(signal.SIGTERM)  # JAX's preemption service passes it on to all processes
        else:
            self.received = signal.SIGHUP.name

    def _pass_on(self, _number: int, _frame: FrameType | None) -> None:
        if self._sent:
            raise KeyboardInterrupt
        self._sent = True
        _write("SIGINT: all processes save before exit; send it again to exit this one immediately\n")
        signal.raise_signal(signal.SIGTERM)

    def _watch(self, signals: socket.socket) -> None:
        """Handle signals in a separate thread: handlers wait until the main thread returns to Python."""
        with signals:
            first: float | None = None
            while number := signals.recv(1):
                if number[0] not in SIGNALS:
                    continue
                now = time.monotonic()
                if first is None:
                    first = now
                    _tell(signal.Signals(number[0]).name, saves=self._begun)
                    if not self._begun:
                        time.sleep(PATIENCE)
                        _end(0)
                elif now - first > TOGETHER:
                    _end(INTERRUPTED)


def _tell(name: str, *, saves: bool) -> None:
    what = "saving before exit; send it again to exit immediately"
    _write(f"{name}: {what if saves else 'stopped before the first update; there was nothing to save'}\n")


def _write(text: str) -> None:
    """Write to standard error, unless it is closed, has lost its reader, or is being written to (RuntimeError)."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _end(status: int) -> NoReturn:
    """End this process from any thread, whatever the others do."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
