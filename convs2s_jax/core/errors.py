"""What a user is told when something they gave cannot work."""

import contextlib
import difflib
from collections.abc import Iterable, Iterator


class UserError(Exception):
    """A mistake in what the user gave: one sentence with where, the value, the rule and the way out.

    The command lines print it without a traceback and end with exit status 2.
    """


@contextlib.contextmanager
def located(where: str) -> Iterator[None]:
    """Put before a UserError in which file it arose, for what was read of the file does not know: "WHERE: ..."."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean 'x'?" for the known name nearest to `name`, else the list of known names."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; there are: {', '.join(known)}" if known else ""
