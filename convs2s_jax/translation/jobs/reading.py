"""Read the texts of a job, which have a line for each result, side by side and window by window."""

import dataclasses
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

from convs2s_jax.core.checksums import WRAP, lines_digest
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError, counted
from convs2s_jax.data import text_files

Rows = Mapping[str, list[str]]
"""The lines of a window, by the role of their text: "input", "reference", "prefix" and so on."""
TOTAL = "the number of lines"


@dataclasses.dataclass(frozen=True)
class Text:
    """A text with one line for each result.

    Attributes:
      source: the lines, or the path of a file, which is read as far as it is needed.
      name: of the text, for messages.
      what: what one of its lines is, for messages.
      label: its name in the record of an output that depends on it; "" if the output does not.
    """

    source: str | Sequence[str]
    name: str
    what: str = ""
    label: str = ""

    @property
    def again(self) -> bool:
        """Whether it can be read several times, unlike standard input and other pipes."""
        return not isinstance(self.source, str) or os.path.isfile(self.source)


def count(texts: Sequence[Text]) -> tuple[int | None, dict[str, Any]]:
    """Count the lines of the texts that can be read again.

    Returns:
      Their number, None if there are no such texts; and a record of them: this number, and digests of files by label.

    Raises:
      UserError: their numbers differ, or a file cannot be read.
    """
    known = [
        (text, *(text_files.count(text.source) if isinstance(text.source, str) else (len(text.source), "")))
        for text in texts
        if text.again
    ]
    for text, lines, _ in known[1:]:
        first, right, _ = known[0]
        check(
            lines == right,
            f"{first.name} has {counted(right, 'line')}, but {text.name} has {lines}: each line needs its {text.what}",
        )
    total = known[0][1] if known else None
    return total, {TOTAL: total, **{text.label: digest for text, _, digest in known if text.label}}


class Reader:
    """Reads the same lines of several texts.

    Attributes:
      line: number of the next line, from 0.
      end: number of the line before which it ends; None if it reads all.
      digests: by label, the digest of the lines read since `restrict` (`lines_digest`).
    """

    def __init__(self, texts: Mapping[str, Text]) -> None:
        """Read from the first line, to the end."""
        self._texts = texts
        self._streams = {
            role: text_files.each_line(text.source) if isinstance(text.source, str) else iter(text.source)
            for role, text in texts.items()
        }
        self.line = 0
        self.restrict(0, None)

    def restrict(self, begin: int, end: int | None) -> None:
        """Skip to line `begin`, at or after `line`, and read to before `end`. Raises UserError as `window`."""
        for stream in self._streams.values():
            next(itertools.islice(stream, begin - self.line, begin - self.line), None)
        self.line, self.end = begin, end
        self.digests = {text.label: 0 for text in self._texts.values() if text.label}

    def window(self, size: int) -> Rows:
        """Return the next `size` lines of each text, or fewer at their ends; {} if there are none.

        Raises:
          UserError: a text is shorter than another one, or a file cannot be read.
        """
        size = size if self.end is None else min(size, self.end - self.line)
        found = {role: list(itertools.islice(stream, size)) for role, stream in self._streams.items()}
        short, long = (choose(found, key=lambda role: len(found[role])) for choose in (min, max))
        if (count := len(found[short])) < len(found[long]):
            one, other, ends = self._texts[short], self._texts[long], counted(self.line + count, "line")
            what = other.what or one.what
            raise UserError(f"{one.name} has {ends}, but {other.name} has more: each line needs its {what}")
        for role, text in self._texts.items():
            if text.label:
                self.digests[text.label] = (self.digests[text.label] + lines_digest(found[role], self.line)) % WRAP
        self.line += count
        return found if count else {}
