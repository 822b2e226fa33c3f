"""Lexical shortlists: the softmax over the likely target words of a source sentence instead of all words.

After Jean et al. 2015 (section 3.3) and L'Hostis et al. 2016: a lexicon lists the likely target words of each source
word, and a sentence may use those of its words and the most frequent ones. The softmax layer is computed for U words,
the union over a batch. Within it each sentence has words of its own: all others get probability 0, so that, unlike in
the usual procedure, its translation depends on nothing but the sentence. Probabilities are normalised over its words.

The search itself sees a vocabulary of U words, numbered in the order of their ids. The special symbols come first, so
that they keep their numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from convs2s_jax.core.rows import Tokens, round_up
from convs2s_jax.core.tokens import EOS
from convs2s_jax.nn import struct
from convs2s_jax.search.buckets import Bucket
from convs2s_jax.search.rules import SPECIAL

LEAST = 1024
"""Smallest size of a union."""
FEW = 8
"""Sentences whose union is taken to be a quarter of the vocabulary, where sizes are chosen beforehand."""


@dataclass(frozen=True)
class Shortlist:
    """The likely target words of each source word.

    Attributes:
      always: [A], target words that every sentence may use.
      words: likely target words of all source words, one source word after another.
      offsets: [source vocabulary + 1]: those of source word s are `words[offsets[s] : offsets[s + 1]]`.
      size: V, target words in all.
    """

    always: np.ndarray
    words: np.ndarray
    offsets: np.ndarray
    size: int

    def of(self, source: Tokens, *others: Tokens) -> np.ndarray:
        """The words that the translation of a source [S] may use, ascending: likely, frequent, special and `others`.

        Args:
          source: token ids without the end symbol, whose likely words count too.
          others: target words that it has to be able to use, such as a prefix.
        """
        sources = {*map(int, source), EOS} if len(self.words) else ()
        likely = [self.words[self.offsets[s] : self.offsets[s + 1]] for s in sources]
        given = [np.asarray(other, np.int32) for other in others]
        return np.unique(np.concatenate([np.arange(SPECIAL, dtype=np.int32), self.always, *likely, *given]))


@struct.dataclass
class Selection:
    """The words of a batch; each of D devices has its own for its share of the sentences.

    Attributes:
      words: [D, U] int32, ids of the words in ascending order, the last one repeated up to the size.
      allowed: [B, U] bool, the words that each sentence may use.
    """

    words: Any
    allowed: Any


def union_size(count: int, most: int) -> int:
    """The size U for a union of `count` words: few sizes, 1024 and from there on in steps of an eighth to a quarter.

    Args:
      count: words in the union.
      most: V; a union that would be rounded up to more has all words.
    """
    step = max(LEAST, 1 << (count - 1).bit_length()) // 8
    return min(round_up(max(count, LEAST), step), most)


def fixed_sizes(shortlist: Shortlist | None, rows: int) -> tuple[int, ...]:
    """The sizes U of batches of `rows` sentences where programs are compiled beforehand: a part of all words, or all.

    The words of 8 sentences are a seventh of a vocabulary of 6,400, those of 64 are two fifths. Without a shortlist
    there are none.
    """
    if shortlist is None:
        return ()
    part = shortlist.size // (4 if rows <= FEW else 2)
    return union_size(max(1, part), shortlist.size), shortlist.size


def everything(size: int) -> Shortlist:
    """The shortlist of all words of a vocabulary: a search with it uses the programs of other shortlists."""
    none = np.zeros(0, np.int32)
    return Shortlist(always=np.arange(size, dtype=np.int32), words=none, offsets=np.zeros(0, np.int32), size=size)


def union_sizes(
    plan: Sequence[Bucket], allowed: Sequence[np.ndarray], most: int, *, among: Sequence[int] = ()
) -> Mapping[tuple[int, int], int]:
    """U for the batches of each shape: the largest of them decides, so that a shape is compiled once.

    Args:
      plan: the batches.
      allowed: words of each sentence.
      most: V.
      among: sizes to choose from, ascending, V last; if empty, those of `union_size`.
    """
    found: dict[tuple[int, int], int] = {}
    for bucket in plan:
        union = np.zeros(most, bool)
        for i in bucket.indices:
            union[allowed[i]] = True
        found[bucket.shape] = max(found.get(bucket.shape, 1), int(union.sum()))
    if among:
        return {shape: next((size for size in among if size >= count), most) for shape, count in found.items()}
    return {shape: union_size(count, most) for shape, count in found.items()}


def select(allowed: Sequence[np.ndarray], size: int, most: int) -> Selection:
    """The selection of one device.

    Args:
      allowed: the words of each of B sentences.
      size: U, at least as many as there are words in the union.
      most: V.
    """
    rows = np.zeros((len(allowed), most), bool)
    for row, words in zip(rows, allowed, strict=True):
        row[words] = True
    union = np.flatnonzero(rows.any(axis=0)).astype(np.int32)
    padded = np.concatenate([union, np.full(size - len(union), union[-1], np.int32)])
    return Selection(words=padded[None], allowed=rows[:, padded] & (np.arange(size) < len(union)))


class Wishes(NamedTuple):
    """What is asked of the rows of some batches in the numbers of their words.

    Attributes:
      selection: the words; None for all words, whose numbers are their ids.
      prefixes: for each row, tokens that its translation begins with.
      phrases: for each row, token sequences that must occur in it.
    """

    selection: Selection | None
    prefixes: list[Tokens]
    phrases: list[Sequence[Tokens]]


def wishes_of(
    shortlist: Shortlist | None,
    plan: Sequence[Bucket],
    sources: Sequence[np.ndarray],
    prefixes: Sequence[Tokens],
    phrases: Sequence[Sequence[Tokens]],
    *,
    sizes: Sequence[int] = (),
) -> Callable[[Sequence[Bucket]], Wishes]:
    """The function that finds the wishes of some batches of a plan, one for each device.

    Args:
      shortlist: None for all words.
      plan: all batches.
      sources: token ids of all sentences, without the end symbol, as far as the model reads them.
      prefixes, phrases: of all sentences; their tokens are among the words that a sentence may use.
      sizes: those that selections may have, ascending, the whole vocabulary last; if empty, those of `union_size`.
    """
    if shortlist is None:
        return lambda group: _numbered(None, group, prefixes, phrases)
    nothing = shortlist.of(())
    given = zip(sources, prefixes, phrases, strict=True)
    allowed = [shortlist.of(source, prefix, *wanted) for source, prefix, wanted in given]
    chosen = union_sizes(plan, allowed, shortlist.size, among=sizes)

    def selected(group: Sequence[Bucket]) -> Wishes:
        rows = [[nothing if i is None else allowed[i] for i in bucket.padded] for bucket in group]
        parts = [select(each, chosen[b.shape], shortlist.size) for each, b in zip(rows, group, strict=True)]
        words, masks = np.concatenate([p.words for p in parts]), np.concatenate([p.allowed for p in parts])
        return _numbered(Selection(words=words, allowed=masks), group, prefixes, phrases)

    return selected


def _numbered(
    selection: Selection | None,
    group: Sequence[Bucket],
    prefixes: Sequence[Tokens],
    phrases: Sequence[Sequence[Tokens]],
) -> Wishes:
    """The wishes of the rows of some batches; those of no sentence wish nothing."""
    row_prefixes: list[Tokens] = []
    row_phrases: list[Sequence[Tokens]] = []
    for device, bucket in enumerate(group):
        words = None if selection is None else selection.words[device]
        row_prefixes += [() if i is None else _numbers(words, prefixes[i]) for i in bucket.padded]
        row_phrases += [() if i is None else [_numbers(words, phrase) for phrase in phrases[i]] for i in bucket.padded]
    return Wishes(selection, row_prefixes, row_phrases)


def _numbers(words: np.ndarray | None, tokens: Tokens) -> Tokens:
    """The numbers of tokens among `words` [U], ascending, which hold them; None for all words."""
    return tokens if words is None else np.searchsorted(words, np.asarray(tokens, np.int32))
