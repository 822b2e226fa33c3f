"""The exception for user errors, and helpers for its messages."""

import contextlib
import difflib
import reprlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_SHOWN = 200
"""Maximum number of characters of a value in a message."""
_SENTENCE = 2000
"""Maximum number of characters of a message that a command prints."""


_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother, _REPR.maxlong = 5, _SHOWN, _SHOWN, 60
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = _REPR.maxset = 20

Tell = Callable[[str], None]
"""Receives a message for the user."""


class UserError(ValueError):
    """A user error. The message is one sentence with the place, the value, the rule and how to fix it.

    Commands print it without a traceback and exit with status 2.
    """


@contextlib.contextmanager
def located(where: str) -> Iterator[None]:
    """Prefix the message of a UserError with a place, such as a file name: "WHERE: ..."."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: "1 line", "2 lines"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def did_you_mean(name: str, known: Iterable[str], *, otherwise: str | None = None) -> str:
    """Return "; did you mean 'x'?" for the known name closest to `name`.

    If none is close, return `otherwise`, by default a list of the known names.
    """
    known = sorted(known)
    near = difflib.get_close_matches(name[:_SHOWN], known, n=1, cutoff=0.6)
    if near:
        return f"; did you mean '{near[0]}'?"
    if otherwise is not None:
        return otherwise
    return f"; available: {', '.join(known)}" if known else ""


def shown(value: Any) -> str:
    """Return the `repr` of any value for a message, in bounded time and length."""
    try:
        return shortened(_REPR.repr(value), _SHOWN)
    except ValueError:  # Python refuses to print thousands of digits
        return "a number of thousands of digits"


def shortened(text: str, most: int) -> str:
    """Return a string of about `most` characters at most; the middle of a longer one is left out."""
    if len(text) <= most:
        return text
    half = most // 2
    return f"{text[:half]} ... ({len(text) - 2 * half} more characters) ... {text[-half:]}"


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error for a message, truncated if it is long; its type if it is empty."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:_SHOWN]


def one_line(sentence: str) -> str:
    """Return a message as it is printed: on one line, of bounded length, without control characters."""
    return printable(shortened(sentence, _SENTENCE))


def printable(text: str) -> str:
    """Return a text with control characters and the like as escape sequences."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
