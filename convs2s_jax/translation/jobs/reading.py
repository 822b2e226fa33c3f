"""Read the texts of a job, which have a line for each result, side by side and window by window."""

import dataclasses
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence

from convs2s_jax.core.checksums import WRAP, lines_digest
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError, counted
from convs2s_jax.data import text_files

Rows = Mapping[str, list[str]]
"""The lines of a window, by the role of their text: "input", "reference", "prefix" and so on."""


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

    def lines(self) -> Iterator[str]:
        """Return its lines. Raises UserError as `text_files.each_line`."""
        return text_files.each_line(self.source) if isinstance(self.source, str) else iter(self.source)

    def count(self) -> tuple[int, str]:
        """Return its number of lines, and for a file a digest of its bytes. Raises UserError as `text_files.count`."""
        return text_files.count(self.source) if isinstance(self.source, str) else (len(self.source), "")


def count(texts: Sequence[Text]) -> tuple[int | None, dict[str, str]]:
    """Return the number of lines of the texts that can be read again, None if there are none, and digests by label.

    Raises:
      UserError: their numbers differ, or a file cannot be read.
    """
    known = [(text, *text.count()) for text in texts if text.again]
    for text, lines, _ in known[1:]:
        first, right, _ = known[0]
        check(
            lines == right,
            f"{first.name} has {counted(right, 'line')}, but {text.name} has {lines}: each line needs its {text.what}",
        )
    return (known[0][1] if known else None), {text.label: digest for text, _, digest in known if text.label}


class Reader:
    """Reads the same lines of several texts.

    Attributes:
      line: number of the next line, from 0.
      digests: by label, the digest of the lines read so far (`lines_digest`).
    """

    def __init__(self, texts: Mapping[str, Text], begin: int = 0) -> None:
        """Read from line `begin`. Raises UserError if a file cannot be read."""
        self._texts = texts
        self._streams = {role: text.lines() for role, text in texts.items()}
        self.line, self.digests = begin, {text.label: 0 for text in texts.values() if text.label}
        for stream in self._streams.values():
            next(itertools.islice(stream, begin, begin), None)

    def window(self, size: int) -> Rows:
        """Return the next `size` lines of each text, or fewer at their ends; {} if there are none.

        Raises:
          UserError: a text is shorter than another one, or a file cannot be read.
        """
        found = {role: list(itertools.islice(stream, size)) for role, stream in self._streams.items()}
        short, long = (self._texts[choose(found, key=lambda role: len(found[role]))] for choose in (min, max))
        if short is not long and len({*map(len, found.values())}) > 1:
            ends, what = counted(self.line + min(map(len, found.values())), "line"), long.what or short.what
            raise UserError(f"{short.name} has {ends}, but {long.name} has more: each line needs its {what}")
        for role, text in self._texts.items():
            if text.label:
                self.digests[text.label] = (self.digests[text.label] + lines_digest(found[role], self.line)) % WRAP
        count = len(next(iter(found.values())))
        self.line += count
        return found if count else {}
