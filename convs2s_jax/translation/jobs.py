"""What decode.py does with a file, for any kind of model: a record that one loop works off (`translation.job`)."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from convs2s_jax.translation.formats import Format

Tell = Callable[[str], None]


class Job(NamedTuple):
    """A file to be worked off.

    lines: of the source.
    style: how results are written and read back.
    window(first, progress) -> results of the next lines, from the line `first` on; each has `best.text`. `progress` is
        called with the number of lines done since the call before.
    warn(results): tells of lines of which only the beginning counted, or nothing.
    report(texts): tells of examples, and of scores where there are references; gets the best text of every line.
    """

    lines: Sequence[str]
    style: Format
    window: Callable[[int, Callable[[int], None]], Sequence[Any]]
    warn: Callable[[Sequence[Any]], None]
    report: Callable[[Sequence[str]], None]
