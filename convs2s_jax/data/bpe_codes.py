"""Subword units of subword-nmt: codes split words into pieces, and a list assigns the ids.

A piece that does not end its word has the mark "@@", as in "Ap@@ fel".
"""

import dataclasses
import functools
import heapq
import itertools
import random
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from convs2s_jax.core.errors import UserError, shown
from convs2s_jax.data.symbols import Vocabulary, Words, json_content, load_json, load_words
from convs2s_jax.data.text_files import encoded, read_lines

MARK = "@@"
_END = "</w>"
_VERSIONS = ("0.1", "0.2")
Rank = Callable[[str, str], float | None]
"""Returns the rank of a pair, or None if it is not merged."""


def of_words(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a word, and perhaps of more, that caches its results for 65,536 words.

    Words of more than 32 characters are not cached. Text without spaces is one long word that rarely recurs.
    """
    cached = functools.lru_cache(maxsize=2**16)(function)
    return lambda word, *more: (cached if len(word) <= 32 else function)(word, *more)


def merged(symbols: Sequence[str], rank: Callable[[str, str], float | None]) -> list[str]:
    """Merge neighbours until no pair has a rank. Each step merges all pairs of the lowest rank, from left to right.

    Algorithm 1 of Sennrich et al. 2016, for n symbols in time proportional to n log n.
    """
    parts, before, after = [*symbols], [*range(-1, len(symbols))], [*range(1, len(symbols) + 1)]
    waiting: list[tuple[float, int]] = []  # pairs by rank and place; some no longer exist

    def rank_at(i: int) -> float | None:
        return rank(parts[i], parts[after[i]]) if parts[i] and after[i] < len(parts) else None

    def add(i: int) -> None:
        if i >= 0 and (found := rank_at(i)) is not None:
            heapq.heappush(waiting, (found, i))

    for i in range(len(parts)):
        add(i)
    while waiting:
        lowest, places = waiting[0][0], dict[int, None]()
        while waiting and waiting[0][0] == lowest:
            places[heapq.heappop(waiting)[1]] = None
        joined = []
        for i in places:
            if rank_at(i) == lowest:
                parts[i], parts[after[i]] = parts[i] + parts[after[i]], ""
                after[i] = after[after[i]]
                before[after[i]] = i
                joined.append(i)
        for i in joined:
            add(before[i])
            add(i)
    return [*filter(None, parts)]


def merged_at_random(symbols: Sequence[str], rank: Rank, *, rate: float, rng: random.Random) -> list[str]:
    """Merge as `merged` does, but each step first drops every candidate merge with probability `rate`.

    The merging stops when all candidates are dropped (Provilkov et al. 2020, algorithm 1).
    """
    parts = [*symbols]
    while True:
        ranks = itertools.starmap(rank, itertools.pairwise(parts))
        places = [(each, i) for i, each in enumerate(ranks) if each is not None and rng.random() >= rate]
        if not places:
            return parts
        lowest = min(places)[0]
        chosen = {i for each, i in places if each == lowest}
        joined, i = list[str](), 0
        while i < len(parts):
            both = i in chosen
            joined.append(parts[i] + parts[i + 1] if both else parts[i])
            i += 1 + both
        parts = joined


@dataclasses.dataclass(frozen=True)
class CodedWords(Words):
    """Pieces of words, into which codes split them.

    Codes are the output of subword-nmt learn-bpe (Sennrich et al. 2016, section 3.2). Joining removes the marks and
    puts one space between words. Words are separated by U+0020 alone, as there: `Vocabulary` replaces other white space
    that the list does not contain.

    Attributes:
      merges: pairs of symbols in the order in which they were learned; the first counts if a pair occurs twice.
      version: "0.1", where the end of a word is a separate symbol, or "0.2", where it is part of the last letter.
    """

    merges: tuple[tuple[str, str], ...]
    version: str = "0.2"

    suffix = ".bpe.json"
    divides_words = True

    @functools.cached_property
    def _ranks(self) -> Mapping[tuple[str, str], int]:
        return {pair: rank for rank, pair in reversed(list(enumerate(self.merges)))}

    def _rank(self, left: str, right: str) -> int | None:
        return self._ranks.get((left, right))

    @functools.cached_property
    def cut(self) -> Callable[[str], tuple[str, ...]]:
        """word -> its pieces, with the mark on all but the last."""
        return of_words(self._cut)

    def _cut(self, word: str, merge: Callable[[Sequence[str], Rank], list[str]] = merged) -> tuple[str, ...]:
        if len(word) < 2:
            return (word,)
        symbols = [*word, _END] if self.version == "0.1" else [*word[:-1], f"{word[-1]}{_END}"]
        *first, last = merge(symbols, self._rank)
        *first, last = [*first, last.removesuffix(_END)] if last != _END else first
        if last.endswith(MARK) and last != MARK:  # it would be read as one with a mark
            first, last = [*first, last.removesuffix(MARK)], MARK
        return (*(f"{piece}{MARK}" for piece in first), last)

    def split(self, text: str) -> Sequence[str]:
        """Return the pieces of a text with their marks."""
        return [piece for word in _words(text) for piece in self.cut(word)]

    def draw(self, text: str, *, rate: float, rng: random.Random) -> Sequence[str]:
        """Return a random segmentation of a text; see `data.segmentation`."""
        merge = functools.partial(merged_at_random, rate=rate, rng=rng)
        return [piece for word in _words(text) for piece in self._cut(word, merge)]

    def join(self, symbols: Sequence[str]) -> str:
        """Return the text of pieces. A mark by itself is text: no piece before a mark is empty."""
        parts = (one.removesuffix(MARK) if one.endswith(MARK) and one != MARK else f"{one} " for one in symbols)
        return "".join(parts).rstrip(" ")

    def surfaces(self, text: str) -> list[str]:
        """Return each piece of a text without its mark, with a space before each word."""
        return [
            f"{'' if i else ' '}{piece.removesuffix(MARK) if i + 1 < len(cut) else piece}"
            for cut in map(self.cut, _words(text))
            for i, piece in enumerate(cut)
        ]

    def content(self, symbols: Sequence[str], counts: Sequence[int]) -> bytes:
        """Return codes and list as JSON."""
        return json_content(symbols, counts, version=self.version, merges=self.merges)

    def codes(self) -> bytes:
        """Return the content of a subword-nmt codes file."""
        return encoded("".join(f"{line}\n" for line in (f"#version: {self.version}", *map(" ".join, self.merges))))


def _words(text: str) -> list[str]:
    return [word for word in text.split(" ") if word]


def load_codes(path: Path) -> CodedWords:
    """Read a subword-nmt codes file.

    Raises:
      UserError: a line is not a pair of symbols, or the version is not supported.
    """
    lines = read_lines(path, again=True, nul=True)
    version, first = "0.1", 0
    if lines and lines[0].startswith("#version:"):
        given, first = lines[0].split()[-1], 1
        found = re.fullmatch(r"(0\.[12])(\.0+)*", given)
        if not found:
            raise UserError(f"{path}: its codes have version {shown(given)}; use codes of version 0.1 or 0.2")
        version = found[1]
    merges = []
    for number, line in enumerate("\n".join(lines[first:]).rstrip("\n").split("\n"), 1 + first):
        pair = line.strip(" ").split(" ")
        if len(pair) != 2 or not all(pair):
            raise UserError(
                f"{path}, line {number}: {shown(line)} is not a pair of symbols, as in 'th e</w>'; use the codes that "
                "subword-nmt learn-bpe wrote"
            )
        merges.append((pair[0], pair[1]))
    return CodedWords(tuple(merges), version)


def load_coded(path: Path) -> Vocabulary:
    """Read the file of a list of pieces with its codes.

    Raises:
      UserError: the file is damaged.
    """

    def codes_of(values: Any) -> CodedWords:
        merges = tuple((left, right) for left, right in values["merges"])
        if values["version"] not in _VERSIONS or not all(type(one) is str and one for pair in merges for one in pair):
            raise ValueError
        return CodedWords(merges, values["version"])

    made = load_json(path, codes_of)
    assert isinstance(made.segmenter, CodedWords)
    return coded(made.segmenter, made, path)


def coded(codes: CodedWords, words: Vocabulary, where: Path) -> Vocabulary:
    """Combine codes with a list of pieces.

    Args:
      codes: split words into pieces.
      words: the list.
      where: file of the codes, for messages.

    Raises:
      UserError: the codes produce fewer than half of the listed pieces of several letters. Codes learned from the same
        text produce nearly all; those of another language produce few.
    """
    joins = (left + right for left, right in codes.merges)
    made = {one.removesuffix(_END) if one.endswith(_END) else f"{one}{MARK}" for one in joins}
    joined = {piece for piece in words.symbols if len(piece.removesuffix(MARK)) > 1}
    found = len(joined & made)
    if 2 * found < len(joined):
        raise UserError(
            f"{where}: the codes produce {found} of the {len(joined)} pieces of several letters in the word list; "
            "use the codes that split its text, separately for each side"
        )
    return dataclasses.replace(words, segmenter=codes)


def is_marked(words: Vocabulary) -> bool:
    """Whether a word list contains pieces with the mark of subword-nmt."""
    return type(words.segmenter) is Words and any(one.endswith(MARK) and one != MARK for one in words.symbols)


def load_list(path: Path) -> Vocabulary:
    """Read a word list, NAME.txt, with the codes next to it, NAME.codes, if they exist.

    Raises:
      UserError: a file is damaged, or the codes belong to another list.
    """
    words, codes = load_words(path), path.with_suffix(".codes")
    return coded(load_codes(codes), words, codes) if codes.exists() else words
