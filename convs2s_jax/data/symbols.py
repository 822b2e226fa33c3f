"""A vocabulary: a list of symbols with their ids, and a segmenter, which splits text into symbols and joins them.

Here are the segmenters of words and of labels; those of subwords are in `data.pieces` and `data.bpe_codes`.
"""

import collections
import dataclasses
import functools
import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from convs2s_jax.core.errors import UserError, counted, shown
from convs2s_jax.core.tokens import BOS, EOS, PAD, SPECIAL, UNK
from convs2s_jax.data.config import VocabularyConfig
from convs2s_jax.data.text_files import encoded, read_lines

_OVERWRITE = " #fairseq:overwrite"
_DIGITS = 18
"""Maximum number of digits of a count."""


@dataclasses.dataclass(frozen=True)
class Words:
    """A segmenter: splits a text into symbols and joins them again. Subclasses do so in other ways.

    Symbols are words, separated by white space, as with fairseq's dictionaries, and are joined with one space.

    Attributes:
      suffix: file name suffix of vocabularies of this kind.
      reserved: symbols that no text contains, even if they are listed.
    """

    suffix: ClassVar[str] = ".txt"
    reserved: ClassVar[Sequence[str]] = SPECIAL

    @property
    def divides_words(self) -> bool:
        """Whether words consist of several symbols, so that a text has many segmentations."""
        return False

    def split(self, text: str) -> Sequence[str]:
        """Return the symbols of a text."""
        return text.split()

    def draw(self, text: str, *, rate: float, rng: random.Random) -> Sequence[str]:  # noqa: ARG002 - of subwords
        """Return a random segmentation of a text; see `data.segmentation`."""
        return self.split(text)

    def join(self, symbols: Sequence[str]) -> str:
        """Return the text of symbols."""
        return " ".join(symbols)

    def surfaces(self, text: str) -> list[str]:
        """Return the text of each symbol. Each word begins with a space."""
        return [f" {word}" for word in text.split()]

    def encode(self, texts: Sequence[str], ids: Mapping[str, int]) -> list[list[int]]:
        """Return the ids of each text."""
        return [[ids.get(symbol, UNK) for symbol in self.split(text)] for text in texts]

    def content(self, symbols: Sequence[str], counts: Sequence[int]) -> bytes:
        """Return the content of the file, here a fairseq dict.txt: a word and its count on each line."""
        seen = set(SPECIAL)
        lines = []
        for word, count in zip(symbols, counts, strict=True):
            lines.append(f"{word} {count}{_OVERWRITE if word in seen else ''}\n")
            seen.add(word)
        return encoded("".join(lines))


@dataclasses.dataclass(frozen=True)
class Labels(Words):
    """Each text is one label. White space around it is ignored."""

    suffix = ".labels"
    reserved = ()

    def split(self, text: str) -> Sequence[str]:
        """Return the label; nothing for an empty text."""
        return [label] if (label := text.strip()) else []

    def surfaces(self, text: str) -> list[str]:
        """Return the text itself."""
        return [text]

    def content(self, symbols: Sequence[str], counts: Sequence[int]) -> bytes:  # noqa: ARG002 - there are none
        """Return one label per line, in the order of their ids."""
        return encoded("".join(f"{label}\n" for label in symbols))


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """Converts text to token ids and back. The special ids are those of `core.tokens`.

    Attributes:
      segmenter: its kind.
      symbols: `symbols[i]` has id i + 4. One that is listed twice gets the later id, as in fairseq.
      counts: number of occurrences of each symbol; empty if the kind stores none.
    """

    segmenter: Words
    symbols: tuple[str, ...]
    counts: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        """Number of ids, including the special ones."""
        return len(SPECIAL) + len(self.symbols)

    @property
    def suffix(self) -> str:
        """File name suffix of this kind."""
        return self.segmenter.suffix

    @functools.cached_property
    def fingerprint(self) -> str:
        """Return the SHA-256 of the file. Equal vocabularies have equal fingerprints."""
        return hashlib.sha256(self._content()).hexdigest()

    @functools.cached_property
    def _ids(self) -> Mapping[str, int]:
        reserved = self.segmenter.reserved
        return {symbol: i for i, symbol in enumerate(self.symbols, len(SPECIAL)) if symbol not in reserved}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without EOS. An empty text has no tokens."""
        return self.segmenter.encode(texts, self._ids)

    def sample(self, texts: Sequence[str], *, rate: float, seed: int) -> list[list[int]]:
        """Return token ids of a random segmentation of each text, without EOS; the same arguments give the same ids.

        Args:
          texts: the lines.
          rate: lower is more random for a unigram model, higher is more random for BPE (`data.segmentation`).
          seed: from 0 to 2^32 - 2.
        """
        rng, ids = random.Random(seed), self._ids
        drawn = (self.segmenter.draw(text, rate=rate, rng=rng) for text in texts)
        return [[ids.get(symbol, UNK) for symbol in symbols] for symbols in drawn]

    def decode(self, ids: Sequence[int], unknown: str = SPECIAL[UNK]) -> str:
        """Return the text of token ids. BOS, PAD and EOS are skipped; UNK becomes `unknown`."""
        return self.segmenter.join([unknown if i == UNK else self.token(i) for i in ids if i not in (BOS, PAD, EOS)])

    def surfaces(self, text: str) -> list[str]:
        """Return the text of each token, unknown ones as in the input. Each word begins with a space."""
        return self.segmenter.surfaces(text)

    def token(self, i: int) -> str:
        """Return the symbol of an id."""
        return SPECIAL[i] if i < len(SPECIAL) else self.symbols[i - len(SPECIAL)]

    def save(self, path: Path) -> None:
        """Write the vocabulary to a file."""
        path.write_bytes(self._content())

    def _content(self) -> bytes:
        return self.segmenter.content(self.symbols, self.counts)

    @property
    def lists(self) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """The symbols and the counts, for another segmenter."""
        return self.symbols, self.counts


def of_entries(values: Any) -> Vocabulary:
    """Build a word list from [word, count] pairs in JSON. ValueError or TypeError unless they are such pairs."""
    lines = [(word, count) for word, count in values]
    if not all(type(word) is str and type(count) is int and 0 <= count < 2**63 for word, count in lines):
        raise ValueError("an entry is not a word with its count")
    return word_list([word for word, _ in lines], [count for _, count in lines])


def word_list(words: Sequence[str], counts: Sequence[int] | None = None) -> Vocabulary:
    """Return a vocabulary of words; without counts, each counts 1."""
    return Vocabulary(Words(), tuple(words), tuple([1] * len(words) if counts is None else counts))


def load_words(path: Path) -> Vocabulary:
    """Read a dict.txt written by fairseq or by a word list.

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
    return word_list([word for word, _ in words], [count for _, count in words])


def load_labels(path: Path) -> Vocabulary:
    """Read a list of labels.

    Raises:
      UserError: the file has an empty line, a duplicate label, or a label with white space around it.
    """
    names = read_lines(path, again=True)
    before = set[str]()
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
    return Vocabulary(Labels(), tuple(names))


def train_words(cfg: VocabularyConfig, lines: Iterable[str], *, size: int, field: str) -> Vocabulary:
    """List the words of a text, most frequent first; ties are in code point order.

    Args:
      cfg: words that occur fewer than `min_count` times are left out.
      lines: the text.
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
    return word_list([word for word, _ in kept], [n for _, n in kept])


def learn_labels(lines: Iterable[str]) -> Vocabulary:
    """List the labels of a training text in code point order.

    Raises:
      UserError: there are fewer than two labels.
    """
    names = sorted({line.strip() for line in lines} - {""})
    if len(names) < 2:
        found = f"only '{names[0]}'" if names else "none"
        raise UserError(f"the training text has fewer than two labels ({found}): a classifier needs at least two")
    return Vocabulary(Labels(), tuple(names))
