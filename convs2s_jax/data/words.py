"""Word lists. Tokens are separated by white space, as with fairseq's dictionaries."""

import collections
import dataclasses
import functools
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from convs2s_jax.core.errors import UserError, counted, shown
from convs2s_jax.core.tokens import BOS, EOS, PAD, SPECIAL, UNK
from convs2s_jax.data.config import VocabularyConfig
from convs2s_jax.data.text_files import encoded, read_lines

_OVERWRITE = " #fairseq:overwrite"
_DIGITS = 18
"""Maximum number of digits of a count."""


@dataclasses.dataclass(frozen=True)
class WordList:
    """A vocabulary of words.

    Decoding joins words with one space, so other white space is lost. Unknown words decode to "<unk>".

    Attributes:
      words: `words[i]` has id i + 4.
      counts: number of occurrences of each word.
      suffix: file name suffix of this kind.
    """

    words: tuple[str, ...]
    counts: tuple[int, ...]

    suffix = ".txt"

    @property
    def size(self) -> int:
        """Number of ids, including the special ones."""
        return len(SPECIAL) + len(self.words)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Return the SHA-256 of the saved list."""
        return hashlib.sha256(self._content()).hexdigest()

    @functools.cached_property
    def _ids(self) -> Mapping[str, int]:
        # A word that is listed twice gets the later id, as in fairseq. Special symbols in a text are not recognised,
        # except <unk>.
        return {word: i for i, word in enumerate(self.words, len(SPECIAL)) if word not in SPECIAL}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without EOS. An empty text has no tokens."""
        ids = self._ids
        return [[ids.get(word, UNK) for word in text.split()] for text in texts]

    def decode(self, ids: Sequence[int], unknown: str | None = None) -> str:
        """Return the words of token ids, joined with one space. BOS, PAD and EOS are skipped, UNK becomes `unknown`."""
        unknown = SPECIAL[UNK] if unknown is None else unknown
        return " ".join(unknown if i == UNK else self.token(i) for i in ids if i not in (BOS, PAD, EOS))

    def surfaces(self, text: str) -> list[str]:
        """Return each word of a text with a leading space."""
        return [f" {word}" for word in text.split()]

    def token(self, i: int) -> str:
        """Return the word of an id."""
        return SPECIAL[i] if i < len(SPECIAL) else self.words[i - len(SPECIAL)]

    def entries(self) -> list[tuple[str, int]]:
        """Return each word with its count, for a JSON file."""
        return list(zip(self.words, self.counts, strict=True))

    @classmethod
    def of_entries(cls, values: Any) -> "WordList":
        """Build from `entries` read from JSON. ValueError or TypeError unless they are pairs of a word and a count."""
        lines = [(word, count) for word, count in values]
        if not all(type(word) is str and type(count) is int and 0 <= count < 2**63 for word, count in lines):
            raise ValueError("an entry is not a word with its count")
        return cls(tuple(word for word, _ in lines), tuple(count for _, count in lines))

    def save(self, path: Path) -> None:
        """Write a fairseq dict.txt: a word and its count on each line, without the special symbols."""
        path.write_bytes(self._content())

    def _content(self) -> bytes:
        seen = set()
        lines = []
        for word, count in zip(self.words, self.counts, strict=True):
            lines.append(f"{word} {count}{_OVERWRITE if word in SPECIAL or word in seen else ''}\n")
            seen.add(word)
        return encoded("".join(lines))

    @classmethod
    def load(cls, path: Path) -> "WordList":
        """Read a dict.txt written by `save` or by fairseq.

        Raises:
          UserError: a line is not a word and its count, or a word is listed twice.
        """
        counts: dict[str, int] = {}
        words: list[tuple[str, int]] = []
        for number, line in enumerate(read_lines(path, again=True), 1):
            line = line.rstrip()
            word, space, count = line.removesuffix(_OVERWRITE).rstrip().rpartition(" ")
            if not (word and space and count.isdecimal() and len(count) <= _DIGITS):
                raise UserError(f"{path}, line {number}: {shown(line)} is not a word and its count, as in 'house 12'")
            if (word in counts or word in SPECIAL) and not line.endswith(_OVERWRITE):
                raise UserError(
                    f"{path}, line {number}: {shown(word)} is already in the list; use the list that the model was "
                    "trained with, or delete the line of a new list"
                )
            counts[word] = int(count)
            words.append((word, int(count)))
        return cls(tuple(word for word, _ in words), tuple(count for _, count in words))


def train(cfg: VocabularyConfig, lines: Iterable[str], *, size: int, field: str) -> WordList:
    """List the words of a text, most frequent first; ties are in code point order.

    Args:
      cfg: words that occur fewer than `min_count` times are left out.
      size: maximum number of entries, including the special ones.
      field: name of the configuration field of `size`, for messages.

    Raises:
      UserError: no word is frequent enough.
    """
    counts = collections.Counter(word for line in lines for word in line.split())
    kept = [(word, n) for word, n in counts.items() if n >= cfg.min_count and word not in SPECIAL]
    if not counts:
        raise UserError(f"{field} is {size}: this side of the training text has no words; check its file")
    if not kept:
        most = max(counts.values())
        raise UserError(
            f"{field} is {size}: no word of the training text occurs data.vocabulary.min_count = {cfg.min_count} times "
            f"(the most frequent word occurs {counted(most, 'time')}); lower min_count"
        )
    kept.sort(key=lambda item: (-item[1], item[0]))
    kept = kept[: size - len(SPECIAL)]
    return WordList(tuple(word for word, _ in kept), tuple(n for _, n in kept))
