"""Standard streams that are closed, full or without a reader."""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from convs2s_jax.core.errors import UserError

SENTENCES = {
    "stdin": "standard input is closed: redirect a file to it, or set --input=FILE",
    "stdout": "standard output is closed: redirect it to a file, or set --output=FILE",
}
"""Error messages for the use of a closed standard stream."""


class Closed(io.TextIOBase):
    """Stand-in for a standard stream that was closed before the program started. Using it is a user error."""

    def __init__(self, sentence: str) -> None:
        self._sentence = sentence

    @property
    def buffer(self) -> "Closed":
        """The byte stream, closed as well."""
        return self

    def refuse(self, *_: Any) -> NoReturn:
        """Raise UserError, because this stream is closed."""
        raise UserError(self._sentence)

    def isatty(self) -> bool:
        """False."""
        return False

    read = readline = readlines = write = writelines = __next__ = refuse


def open_missing() -> None:
    """Open closed descriptors among 0 to 2 on the null device, before another file gets their number.

    Otherwise, output of libraries to standard error could end up in a checkpoint. Python's stream for a closed standard
    input or output becomes `Closed`. Output to a closed standard error is lost.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            found = os.open(os.devnull, os.O_RDWR)  # the lowest free number
            os.set_inheritable(found, True)
    for name, sentence in SENTENCES.items():
        if getattr(sys, name) is None:
            setattr(sys, name, Closed(sentence))
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # open until the end of the program


class Expendable:
    """Standard error that may be lost: if writing to it fails, a command of many hours continues without it.

    Its terminal, reader or disk may be gone. Everything but writing is done by the given stream.

    Attributes:
      lost: the first error of writing; None while there is none.
    """

    _stream: Any = None  # of a copy that is being made

    def __init__(self, stream: Any) -> None:
        """Write to `stream` until that fails."""
        self._stream = stream
        self.lost: OSError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write text, or drop it."""
        self._attempt(lambda: self._stream.write(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write lines, or drop them."""
        self.write("".join(lines))

    def flush(self) -> None:
        """Flush what was written, or drop it."""
        self._attempt(self._stream.flush)

    def _attempt(self, action: Callable[[], Any]) -> None:
        try:
            action()
        except BlockingIOError:
            pass  # full for now
        except OSError as error:
            self.lost = self.lost or error
            _discard(self._stream)


def check_open(stream: Any) -> None:
    """Raise UserError if a standard stream is closed."""
    if isinstance(stream, Closed):
        stream.refuse()


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
