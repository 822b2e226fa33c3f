"""How a program ends: in one sentence and status 2 after a user's mistake, without what libraries log."""

import contextlib
import errno
import logging as standard_logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from absl import flags, logging

from convs2s_jax.core import streams
from convs2s_jax.core.errors import UserError, one_line

INTERRUPTED = 130
"""Exit status after an interrupt: 128 plus the number of SIGINT, as in shells."""
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Error numbers for a full disk, an exceeded quota and a file that is too large."""
NO_MEMORY_IN = ("RESOURCE_EXHAUSTED", "Out of memory allocating")
"""What XLA says where memory is missing: on accelerators, and in a program that runs on CPUs."""
NO_MEMORY = "there is not enough memory: "
MORE_MEMORY = "use a machine with more"
SMALLER_BATCHES = "use smaller batches (--config.data.batch.tokens) or a smaller model"


def guard(
    action: Callable[[], None],
    *,
    program: str,
    memory: str = MORE_MEMORY,
    leave: Callable[[int], NoReturn] = sys.exit,
) -> None:
    """Run a program. What `explained` explains ends in one sentence and status 2, an interrupt in status 130.

    Args:
      action: the program.
      program: its name.
      memory: what the user can do where memory is missing.
      leave: ends the process with a status other than 0.
    """
    streams.open_missing()
    try:
        action()
        sys.stdout.flush()
    except KeyboardInterrupt:
        leave(INTERRUPTED)
    except BrokenPipeError:
        streams.discard_unwritable()
        sys.exit(141)  # the reader of our output has exited, for example `head`
    except Exception as error:
        sentence = explained(error, memory=memory)
        if sentence is None:
            raise
        with contextlib.suppress(OSError):
            print(f"{program}: {one_line(sentence)}", file=sys.stderr)  # noqa: T201
        streams.discard_unwritable()
        leave(2)


def silence_libraries() -> None:
    """Show no logs of libraries: real problems are raised, and end in our sentence.

    On a full disk, Orbax raises the first error of its tasks, and asyncio logs each of the others with its traceback.
    What finalisers raise, such as that an event loop is closed, is dropped; only an interrupt is sent again.
    """
    logging.set_verbosity(logging.FATAL)
    standard_logging.getLogger("asyncio").setLevel(standard_logging.CRITICAL + 1)
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _ignored


def _ignored(unraisable: Any) -> None:
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        send_again(signal.SIGINT)


def send_again(number: int) -> None:
    """Send this process a signal a little later, since Python ignored what the handler raised.

    It does so where the handler runs within a finaliser, or a callback of a weak reference or of the garbage collector;
    JAX has some of these.
    """
    started = threading.Event()  # on a busy machine it takes longer than the pause to start a thread

    def send() -> None:
        started.wait()
        time.sleep(0.02)
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send, daemon=True)  # Python's list of other threads may be locked just now
    with contextlib.suppress(RuntimeError):  # the interpreter is ending, or there is no room for a thread
        thread.start()
    started.set()


def explained(error: Exception, *, memory: str = MORE_MEMORY) -> str | None:
    """The sentence for a mistake of the user, a file that cannot be used, or no room in memory or on a disk.

    `memory` says what the user can do where memory is missing.
    None for an error of the program, whose traceback is of use.
    """
    if isinstance(error, UserError | flags.Error):
        return str(error)
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return f"{error}: make room and run the same command again"
    if isinstance(error, OSError) and error.strerror and isinstance(error.filename, str | bytes):
        return f"{os.fsdecode(error.filename)} cannot be used: {error.strerror}; give another file or folder"
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(said in str(error) for said in NO_MEMORY_IN)
    ):
        return NO_MEMORY + memory
    return None
