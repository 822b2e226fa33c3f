"""SIGINT and SIGTERM: before the first update, exit; later, finish the update, save and exit.

SIGHUP, which the end of a terminal sends, possibly more than once and together with SIGTERM, ends the process before
the first update as usual, unless it is ignored as with nohup. Later it saves, and further signals count from there.

With several processes a signal to one of them stops all. Before the first update `Peers` tells the others. Later all
have to stop at the same step: JAX's preemption service notices SIGTERM and agrees with the others on it; SIGINT is
turned into SIGTERM.
"""

import contextlib
import ctypes
import os
import signal
import socket
import sys
import threading
import time
from types import FrameType
from typing import Any, NoReturn

from convs2s_jax.core.guard import INTERRUPTED, send_again
from convs2s_jax.training.run.processes import distributed
from convs2s_jax.training.run.processes.peers import Peers

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE = 3.0
"""Seconds from a signal before the first update, or a second signal, to the end of a process in a library call."""


TOGETHER = 0.5
"""Seconds within which further signals belong to the first: launchers send one to a process and to its group."""


class InterruptedWorkError(Exception):
    """A signal arrived during long work that can be interrupted."""


class StoppedBeforeUpdateError(KeyboardInterrupt):
    """A signal arrived before the first update. Not an Exception, so that nothing mistakes it for a file error."""


class EndedAtOnceError(KeyboardInterrupt):
    """A second signal, after which this process ends: nothing waits for a save, or for a store, in the background."""


class Interrupts:
    """Context manager that handles the first signal; a second one ends the program immediately.

    Before `begin` there is nothing to save, and a signal raises StoppedBeforeUpdateError in the main thread. After it,
    a signal is only recorded.

    Attributes:
      received: name of the signal, or "". With several processes only `ask` sets it, so that all agree.
    """

    def __init__(self, *, own_process: bool = False, peers: Peers | None = None) -> None:
        """Handle signals inside the context only.

        Args:
          own_process: whether this process ends with the run. It may then be ended if a library call is still running
            `PATIENCE` seconds after a signal before the first update, or after a second signal: learning vocabularies
            and compiling do not return to Python meanwhile. A second signal then waits for nothing, unless there are
            several processes.
          peers: connections to the other processes.
        """
        self.received = ""
        self._own_process, self._peers = own_process, peers
        self._begun, self._sent, self._hung_up = False, False, False
        self._save_untold, self._stop_untold = [True], [True]
        self._ending, self._repeated = False, False
        self._asked = 0
        self._last = 0
        self._before: dict[signal.Signals, Any] = {}
        self._hook_before: Any = None
        self._of_jax: Any = None
        self._wake: tuple[socket.socket, socket.socket] | None = None
        self._fd_before = -1

    def __enter__(self) -> "Interrupts":
        self._hook_before, sys.unraisablehook = sys.unraisablehook, self._once_more
        if not distributed.is_multi_process():
            self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        else:
            self._before = {signal.SIGINT: signal.signal(signal.SIGINT, self._pass_on)}
            if self._peers is not None:
                self._of_jax = _handler_of(signal.SIGTERM)
                signal.signal(signal.SIGTERM, self._pass_on)
                self._peers.on_stop(self._stop_here)
        if self._own_process:
            self._wake = socket.socketpair()
            self._wake[1].setblocking(False)
            self._fd_before = signal.set_wakeup_fd(self._wake[1].fileno(), warn_on_full_buffer=False)
            threading.Thread(target=self._watch, args=(self._wake[0],), name="interrupts", daemon=True).start()
        return self

    def begin(self) -> None:
        """Note that the first update is done: from now on a signal saves. May be called at every update."""
        if not self._begun:
            self._begun = True
            if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL and not self._ending:
                self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self._hang_up)
            if self._of_jax is not None:
                _set_handler(signal.SIGTERM, self._of_jax)

    def ask(self) -> None:
        """Ask whether a signal arrived. All processes call this at the same places: they agree on the number of a call.

        The places are every update, every batch of a validation loss, and every round of translations.
        """
        self._asked += 1
        if distributed.reached_signal(self._asked):
            self.received = signal.SIGTERM.name

    def __exit__(self, kind: type[BaseException] | None, *_: Any) -> None:
        if kind is StoppedBeforeUpdateError:
            self._tell_stop(self.received)
        self._ending = True
        self.begin()
        for number, handler in self._before.items():
            signal.signal(number, handler)
        sys.unraisablehook = self._hook_before
        if self._wake is not None:
            signal.set_wakeup_fd(self._fd_before)
            self._wake[1].close()

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
        self._last = number
        if self.received not in ("", signal.SIGHUP.name):
            self._ending = True
            raise EndedAtOnceError if self._own_process else KeyboardInterrupt
        self.received = signal.Signals(number).name
        if not self._begun:
            raise StoppedBeforeUpdateError
        self._tell_saving(self.received)

    def _hang_up(self, _number: int, _frame: FrameType | None) -> None:
        if self._hung_up or self.received or self._sent:
            return
        self._hung_up = True
        _write("SIGHUP: saving before exit\n")
        if distributed.is_multi_process():
            distributed.pass_on()
        else:
            self.received = signal.SIGHUP.name

    def _once_more(self, unraisable: Any) -> None:
        """Send a signal again if Python ignored what its handler raised."""
        if self._last and issubclass(unraisable.exc_type, KeyboardInterrupt):
            if issubclass(unraisable.exc_type, StoppedBeforeUpdateError):
                self.received = ""
            self._ending, self._repeated = False, True
            send_again(self._last)
        else:
            self._hook_before(unraisable)

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._last = number
        if self._sent:
            raise KeyboardInterrupt
        self._sent = True
        if self._peers is not None and not self._begun:
            self._peers.stop(signal.Signals(number).name)
        else:
            _write("SIGINT: all processes save before exit; send it again to exit this one immediately\n")
            distributed.pass_on()

    def _watch(self, signals: socket.socket) -> None:
        """Handle signals in a separate thread: the handlers above wait until the main thread returns to Python."""
        with signals:
            first: float | None = None
            while number := signals.recv(1):
                if number[0] not in SIGNALS:
                    continue
                name = signal.Signals(number[0]).name
                if self._peers is not None:
                    if not self._begun:
                        self._peers.stop(name)
                    continue
                if self._repeated:
                    self._repeated = False
                    continue
                now = time.monotonic()
                if first is not None and now - first < TOGETHER:
                    continue
                is_first, first = first is None, now if first is None else first
                if is_first and self._begun:
                    self._tell_saving(name)
                    continue
                time.sleep(PATIENCE)
                if not self._begun:
                    self._tell_stop(name)
                    _end()
                if not is_first and not self._ending:
                    _end(INTERRUPTED)

    def _stop_here(self, name: str) -> None:
        """One of the processes got a signal; called by a thread of `Peers`."""
        if self._begun:
            distributed.pass_on()
        else:
            self._tell_stop(name)
            _end()

    def _tell_saving(self, name: str) -> None:
        _write_once(self._save_untold, f"{name}: saving before exit; send it again to exit immediately\n")

    def _tell_stop(self, name: str) -> None:
        _write_once(self._stop_untold, f"{name}: stopped before the first update; there was nothing to save\n")


def _write_once(untold: list[bool], text: str) -> None:
    """`_write`, if the list still has its item. Handler and thread may run at the same time; only one gets it."""
    with contextlib.suppress(IndexError):
        untold.pop()
        _write(text)


def _write(text: str) -> None:
    """Write to standard error, unless it is closed, has lost its reader, or is being written to (RuntimeError)."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _end(status: int = 0) -> NoReturn:
    """End this process from any thread, whatever the others do."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _handler_of(number: int) -> Any:
    """The handler of a signal that C code has set and Python does not know: C's `struct sigaction`."""
    action = ctypes.create_string_buffer(512)  # more than any system's has
    ctypes.CDLL(None).sigaction(int(number), None, action)
    return action


def _set_handler(number: int, action: Any) -> None:
    ctypes.CDLL(None).sigaction(int(number), action, None)
