"""Labels as a vocabulary, where each line is one token."""

import dataclasses
import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from convs2s_jax.core.errors import UserError, shown
from convs2s_jax.core.tokens import SPECIAL, UNK
from convs2s_jax.data.text_files import encoded, read_lines


@dataclasses.dataclass(frozen=True)
class Labels:
    """A vocabulary of labels. White space around a label is ignored.

    Attributes:
      names: `names[i]` has id i + 4.
      suffix: file name suffix of this kind.
    """

    names: tuple[str, ...]

    suffix = ".labels"

    @property
    def size(self) -> int:
        """Number of ids, including the special ones."""
        return len(SPECIAL) + len(self.names)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Return the SHA-256 of the saved list."""
        return hashlib.sha256(self._content()).hexdigest()

    @functools.cached_property
    def _ids(self) -> Mapping[str, int]:
        return {name: i for i, name in enumerate(self.names, len(SPECIAL))}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the id of each label, UNK if it is not in the list. An empty text has no tokens."""
        return [[self._ids.get(text.strip(), UNK)] if text.strip() else [] for text in texts]

    def decode(self, ids: Sequence[int], unknown: str | None = None) -> str:
        """Return the label of the only id that is not special. Special ids are skipped."""
        names = [self.token(i) for i in ids if i >= len(SPECIAL)]
        return " ".join(names) if names else (unknown or SPECIAL[UNK])

    def surfaces(self, text: str) -> list[str]:
        """Return the text itself."""
        return [text]

    def token(self, i: int) -> str:
        """Return the label of an id."""
        return SPECIAL[i] if i < len(SPECIAL) else self.names[i - len(SPECIAL)]

    def save(self, path: Path) -> None:
        """Write one label per line, in the order of their ids."""
        path.write_bytes(self._content())

    def _content(self) -> bytes:
        return encoded("".join(f"{name}\n" for name in self.names))

    @classmethod
    def load(cls, path: Path) -> "Labels":
        """Read what `save` wrote.

        Raises:
          UserError: the file has an empty line, a duplicate label, or a label with white space around it.
        """
        names = read_lines(path, again=True)
        before: set[str] = set()
        for number, name in enumerate(names, 1):
            why = ""
            if not name.strip():
                why = "is empty"
            elif name != name.strip():
                why = "begins or ends with white space"
            elif name in before:
                why = "is already in the list"
            if why:
                raise UserError(f"{path}, line {number}: the label {shown(name)} {why}; restore the file")
            before.add(name)
        return cls(tuple(names))


def learn(lines: Iterable[str]) -> Labels:
    """List the labels of a training text in code point order.

    Raises:
      UserError: there are fewer than two labels.
    """
    names = sorted({line.strip() for line in lines} - {""})
    if len(names) < 2:
        found = f"only '{names[0]}'" if names else "none"
        raise UserError(f"the training text has fewer than two labels ({found}): a classifier needs at least two")
    return Labels(tuple(names))
