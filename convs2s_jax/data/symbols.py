"""A vocabulary: a list of symbols with their ids, and a segmenter, which splits text into symbols and joins them.

Here are the segmenters of words and of labels; those of subwords are in `data.pieces` and `data.bpe_codes`.
"""

import collections
import dataclasses
import functools
import hashlib
import json
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from convs2s_jax.core.errors import UserError, counted, shown
from convs2s_jax.core.files import read_json
from convs2s_jax.core.text import Normalization, normalizer, odd_of, visible
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
      divides_words: whether words consist of several symbols, so that a text has many segmentations.
    """

    suffix: ClassVar[str] = ".txt"
    reserved: ClassVar[Sequence[str]] = SPECIAL
    divides_words: ClassVar[bool] = False

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields, without what was derived from them: some of that cannot be pickled."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

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
      normalize: what is done to a text before it is read (`data.normalization`), if it was not done when its file was.
    """

    segmenter: Words
    symbols: tuple[str, ...]
    counts: tuple[int, ...] = ()
    normalize: tuple[Normalization, ...] = ()

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
    def _odd(self) -> frozenset[str]:
        return odd_of(self.symbols)

    def read(self, text: str) -> str:
        """Return a text as the segmenter reads it: `visible`, with what this vocabulary contains."""
        return visible(normalizer(self.normalize)(text), self._odd)

    @functools.cached_property
    def _ids(self) -> Mapping[str, int]:
        reserved = self.segmenter.reserved
        return {symbol: i for i, symbol in enumerate(self.symbols, len(SPECIAL)) if symbol not in reserved}

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without EOS. An empty text has no tokens."""
        return self.segmenter.encode([*map(self.read, texts)], self._ids)

    def sample(self, texts: Sequence[str], *, rate: float, seed: int) -> list[list[int]]:
        """Return token ids of a random segmentation of each text, without EOS; the same arguments give the same ids.

        Args:
          texts: the lines.
          rate: lower is more random for a unigram model, higher is more random for BPE (`data.segmentation`).
          seed: from 0 to 2^32 - 2.
        """
        rng, ids = random.Random(seed), self._ids
        drawn = (self.segmenter.draw(text, rate=rate, rng=rng) for text in map(self.read, texts))
        return [[ids.get(symbol, UNK) for symbol in symbols] for symbols in drawn]

    def decode(self, ids: Sequence[int], unknown: str = SPECIAL[UNK]) -> str:
        """Return the text of token ids. BOS, PAD and EOS are skipped; UNK becomes `unknown`."""
        return self.segmenter.join([unknown if i == UNK else self.token(i) for i in ids if i not in (BOS, PAD, EOS)])

    def surfaces(self, text: str) -> list[str]:
        """Return the text of each token, unknown ones as in the input. Each word begins with a space."""
        return self.segmenter.surfaces(self.read(text))

    def token(self, i: int) -> str:
        """Return the symbol of an id."""
        return SPECIAL[i] if i < len(SPECIAL) else self.symbols[i - len(SPECIAL)]

    def save(self, path: Path) -> None:
        """Write the vocabulary to a file."""
        path.write_bytes(self._content())

    def _content(self) -> bytes:
        return self.segmenter.content(self.symbols, self.counts)


def word_list(words: Sequence[str], counts: Sequence[int] | None = None) -> Vocabulary:
    """Return a vocabulary of words; without counts, each counts 1."""
    return Vocabulary(Words(), tuple(words), tuple([1] * len(words) if counts is None else counts))


def load_words(path: Path) -> Vocabulary:
    """Read a dict.txt written by fairseq or by a word list.

    Raises:
      UserError: a line is not a word and its count, or a word is listed twice.
    """
    seen = set(SPECIAL)
    words: list[str] = []
    counts: list[int] = []
    for number, line in enumerate(read_lines(path, again=True, nul=True), 1):
        line = line.rstrip()
        word, _, count = line.removesuffix(_OVERWRITE).rstrip().rpartition(" ")
        if not (word and count.isdecimal() and len(count) <= _DIGITS):
            raise UserError(f"{path}, line {number}: {shown(line)} is not a word and its count, as in 'house 12'")
        if word in seen and not line.endswith(_OVERWRITE):
            raise UserError(
                f"{path}, line {number}: {shown(word)} is already in the list; use the list that the model was "
                "trained with, or delete the line of a new list"
            )
        seen.add(word)
        words.append(word)
        counts.append(int(count))
    return word_list(words, counts)


def json_content(symbols: Sequence[str], counts: Sequence[int], **values: Any) -> bytes:
    """Return the content of a file with a list of pieces and what splits text into them."""
    values["pieces"] = list(zip(symbols, counts, strict=True))
    return json.dumps(values, ensure_ascii=False).encode("utf-8")


def load_json(path: Path, segmenter_of: Callable[[Any], Words]) -> Vocabulary:
    """Read a file that `json_content` wrote.

    Args:
      path: of the file.
      segmenter_of: makes the segmenter from the content. KeyError, TypeError or ValueError mean damage.

    Raises:
      UserError: the file is damaged.
    """
    values = read_json(path, remedy="restore it")
    try:
        lines = [(word, count) for word, count in values["pieces"]]
        intact = all(type(word) is str and type(count) is int and 0 <= count < 2**63 for word, count in lines)
        made = Vocabulary(segmenter_of(values), *(tuple(each) for each in zip(*lines, strict=True)))
        intact = intact and bool(made.fingerprint)  # raises ValueError for half of a surrogate pair
    except (KeyError, TypeError, ValueError):
        intact = False
    if not intact:
        raise UserError(f"{path} is damaged: it is not a list of pieces with what splits text into them; restore it")
    return made


def load_labels(path: Path) -> Vocabulary:
    """Read a list of labels.

    Raises:
      UserError: the file has an empty line, a duplicate label, or a label with white space around it.
    """
    names = read_lines(path, again=True, nul=True)
    first = {name: i for i, name in reversed(list(enumerate(names)))}
    for i, name in enumerate(names):
        if not name or name != name.strip() or first[name] != i:
            raise UserError(
                f"{path}, line {i + 1}: the label {shown(name)} is empty, has white space around it, or is already in "
                "the list; restore the file"
            )
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
    if not kept:
        most = counted(max(counts.values(), default=0), "time")
        raise UserError(
            f"{field} is {size}: no word of the training text occurs data.vocabulary.min_count = {cfg.min_count} times "
            f"(the most frequent word occurs {most}); lower min_count, or check the file of this side"
        )
    kept.sort(key=lambda item: (-item[1], item[0]))
    kept = kept[: size - len(SPECIAL)]
    return word_list([word for word, _ in kept], [n for _, n in kept])


def learn_labels(lines: Iterable[str]) -> Vocabulary:
    """List the labels of a training text in code point order.

    Raises:
      UserError: there are fewer than two labels.
    """
    names = sorted({line.strip() for line in map(visible, lines)} - {""})
    if len(names) < 2:
        found = f"only '{names[0]}'" if names else "none"
        raise UserError(f"the training text has fewer than two labels ({found}): a classifier needs at least two")
    return Vocabulary(Labels(), tuple(names))
