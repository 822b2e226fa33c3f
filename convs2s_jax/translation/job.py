"""What decode.py does with a file or a typed line, for any kind of model: records that one loop each works off."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from convs2s_jax.translation.formats import Format

Tell = Callable[[str], None]


class Job(NamedTuple):
    """A file to be worked off (`translation.decoding`).

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


class Prompt(NamedTuple):
    """Lines that are typed (`translation.interactive`).

    style: how a result is written.
    answer(number, line) -> the result of a line, whose number counts from 0.
    warn(results): as of a `Job`.
    """

    style: Format
    answer: Callable[[int, str], Any]
    warn: Callable[[Sequence[Any]], None]
