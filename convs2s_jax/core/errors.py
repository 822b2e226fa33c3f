"""The error for mistakes of users, and help with its message."""

import contextlib
import difflib
from collections.abc import Iterable, Iterator


class UserError(Exception):
    """A mistake of the user. The message is one sentence: the place, the value, the rule and the way out.

    The command lines print it without a traceback and end with exit status 2.
    """


@contextlib.contextmanager
def located(where: str) -> Iterator[None]:
    """Prefix the message of a UserError with a place, such as a file name: "WHERE: ..."."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the known name closest to `name`; if none is close, list the known names."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; there are: {', '.join(known)}" if known else ""
