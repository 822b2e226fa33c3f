"""How commands end: one sentence and status 2 after a user error, signals, and closed standard streams."""

import contextlib
import errno
import io
import logging as standard_logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any, NoReturn

from absl import flags, logging

from convs2s_jax.core import platforms
from convs2s_jax.core.errors import UserError, one_line

INTERRUPTED, TERMINATED = 130, 143
"""Exit status after SIGINT and SIGTERM: 128 plus the number of the signal, as in shells."""
LOST = 75
"""Exit status if another process was lost, or has taken the lock (EX_TEMPFAIL): the command can be run again."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers for a full disk, an exceeded quota and a file that is too large."""
NO_MEMORY_IN = ("RESOURCE_EXHAUSTED", "Out of memory allocating")
"""XLA's error messages when memory runs out: on accelerators, and in a program that runs on CPUs."""
NO_MEMORY = "out of memory: "
MORE_MEMORY = "use a machine with more memory"
SMALLER_BATCHES = "use smaller batches (--config.data.batch.tokens) or a smaller model"


def guard(
    action: Callable[[], None],
    *,
    program: str,
    memory: str = MORE_MEMORY,
    leave: Callable[[int], NoReturn] = sys.exit,
) -> None:
    """Run a program. Errors that `user_message` knows print one sentence and exit with 2, interrupts with 130.

    Args:
      action: the program.
      program: its name.
      memory: advice for the error message when memory runs out.
      leave: exits the process with a nonzero status.
    """
    open_missing()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as standard error, whatever its encoding
    try:
        action()
        sys.stdout.flush()
    except TerminatedError:
        leave(TERMINATED)
    except KeyboardInterrupt:
        leave(INTERRUPTED)
    except BrokenPipeError:
        discard_unwritable()
        sys.exit(141)  # the reader of our output exited, for example `head`
    except Exception as error:
        sentence = user_message(error, memory=memory)
        if sentence is None:
            raise
        with contextlib.suppress(OSError):
            print(f"{program}: {one_line(sentence)}", file=sys.stderr)  # noqa: T201
        discard_unwritable()
        leave(2)


class TerminatedError(KeyboardInterrupt):
    """SIGTERM within `sigterm_interrupts`."""


@contextlib.contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Handle SIGTERM like Ctrl-C within the block, so that temporary copies are deleted and results written back.

    A handler that is already set stays, as does an ignored signal. Outside the main thread nothing changes.

    Raises:
      TerminatedError: SIGTERM was received.
    """

    is_default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    with handlers({signal.SIGTERM: _terminate} if is_default else {}):
        yield


def _terminate(_number: int, _frame: FrameType | None) -> NoReturn:
    raise TerminatedError


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGINT and SIGTERM end the process at once within the block, even while it is in a library.

    Commands import their work in such blocks of functions, so that `--help` and flag errors do not wait for it.
    Libraries would turn the exceptions of Python's handler and of `sigterm_interrupts` into other errors, ignore them,
    or crash. Other handlers stay, and outside the main thread nothing changes.
    """
    raising = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: _terminate}
    ours = [number for number, handler in raising.items() if signal.getsignal(number) is handler]
    with handlers(dict.fromkeys(ours, signal.SIG_DFL)):
        yield


@contextlib.contextmanager
def held_interrupts() -> Iterator[None]:
    """Defer an interrupt (SIGINT, SIGTERM) until the end of the block; a second one takes effect at once."""
    received: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    try:
        with handlers(dict.fromkeys((signal.SIGINT, signal.SIGTERM), note)):
            yield
    finally:
        for number in received:
            signal.raise_signal(number)


@contextlib.contextmanager
def handlers(handlers: Mapping[int, Any]) -> Iterator[None]:
    """Set handlers of signals within the block. Outside the main thread, where Python refuses that, set none."""
    in_main = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, new) for number, new in handlers.items()} if in_main else {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def silence_libraries() -> None:
    """Turn off library logs. Real problems are raised and end in our own message.

    On a full disk, Orbax raises the first error of its tasks, and asyncio logs all others with their tracebacks.
    Exceptions in finalisers, such as a closed event loop, are dropped. Only an interrupt is sent again.
    """
    logging.set_verbosity(logging.FATAL)
    standard_logging.getLogger("asyncio").setLevel(standard_logging.CRITICAL + 1)
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _ignored


def _ignored(unraisable: Any) -> None:
    """Send this process an interrupt again after a short delay, because Python ignored the handler's exception.

    Python does so if the handler runs inside a finaliser, or inside a callback of a weak reference or of the garbage
    collector. JAX has some of these.
    """
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        number = signal.SIGTERM if issubclass(unraisable.exc_type, TerminatedError) else signal.SIGINT
        timer = threading.Timer(0.02, os.kill, (os.getpid(), number))
        timer.daemon = True
        with contextlib.suppress(RuntimeError):  # the interpreter is ending, or there is no room for a thread
            timer.start()


@contextlib.contextmanager
def located(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add a path to the error of a full disk, which has none."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in NO_ROOM:
            error.filename = str(path)
        raise


def writing_remedy(error: OSError, otherwise: str) -> str:
    """Return the advice for a file that cannot be written: `otherwise`, and to free disk space only if it ran out."""
    return f"free disk space or {otherwise}" if error.errno in NO_ROOM else otherwise


def user_message(error: Exception, *, memory: str = MORE_MEMORY) -> str | None:
    """Return the message for a user error, an unusable file, a full disk, memory that ran out or an absent device.

    `memory` is the advice if memory ran out. Returns None for an error in the program, whose traceback is useful.
    """
    if isinstance(error, UserError | flags.Error):
        return str(error)
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
        return f"{where}{error.strerror or error}; free disk space and run the same command again"
    if isinstance(error, OSError) and error.strerror and isinstance(error.filename, str | bytes):
        return f"{os.fsdecode(error.filename)} cannot be used: {error.strerror}; choose another file or folder"
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(said in str(error) for said in NO_MEMORY_IN)
    ):
        return NO_MEMORY + memory
    return platforms.unavailable(error, os.environ.get("JAX_PLATFORMS"))


def open_missing() -> None:
    """Open closed descriptors among 0 to 2 on the null device, before another file gets their number.

    Otherwise, output of libraries to standard error could end up in a checkpoint. Python's stream for a closed one
    reads nothing, and what is written to it is lost.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            found = os.open(os.devnull, os.O_RDWR)  # the lowest free number
            os.set_inheritable(found, True)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # until the end of the program


class Expendable:
    """Standard error that may be lost: if writing to it fails, a command of many hours continues without it.

    Its terminal, reader or disk may be gone. Everything but writing is done by the given stream.
    """

    _stream: Any = None  # of a copy that is being made

    def __init__(self, stream: Any) -> None:
        """Write to `stream` until that fails."""
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text, or drop it."""
        self._attempt(self._stream.write, text)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write lines, or drop them."""
        self.write("".join(lines))

    def flush(self) -> None:
        """Flush what was written, or drop it."""
        self._attempt(self._stream.flush)

    def _attempt(self, action: Callable[..., Any], *arguments: str) -> None:
        try:
            action(*arguments)
        except BlockingIOError:
            pass  # full for now
        except OSError:
            _discard(self._stream)


def discard_unwritable() -> None:
    """Drop output that standard output and error cannot accept, so that Python does not fail to write it at exit."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            _discard(stream)


def _discard(stream: Any) -> None:
    """Send the output of a stream to the null device, from what it holds already."""
    with contextlib.suppress(OSError), open(os.devnull, "w") as null:
        os.dup2(null.fileno(), stream.fileno())
        stream.flush()
