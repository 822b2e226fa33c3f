"""Lexical shortlists: the softmax over the likely target words of a source sentence instead of all words.

This follows Jean et al. 2015 (section 3.3) and L'Hostis et al. 2016. A lexicon lists the likely target words of each
source word, and a sentence may use those of its words and the most frequent words. The softmax layer is computed for U
words, the union over a batch. Words that are not on a sentence's own list get probability 0. Therefore, unlike in the
usual procedure, a translation depends on nothing but the sentence. Probabilities are normalised over its own words.

The search itself sees a vocabulary of U words, numbered in the order of their ids. The special symbols come first, so
that they keep their numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from convs2s_jax.core.rows import Tokens, round_up
from convs2s_jax.core.tokens import EOS
from convs2s_jax.nn import struct
from convs2s_jax.search.batching import Bucket
from convs2s_jax.search.rules import SPECIAL

LEAST = 1024
"""Minimum size of a union."""
SMALL_BATCH = 8
"""Number of sentences whose union is assumed to be a quarter of the vocabulary when sizes are fixed in advance."""


@dataclass(frozen=True)
class Shortlist:
    """The likely target words of each source word.

    Attributes:
      always: [A], target words that every sentence may use.
      words: likely target words of all source words, one source word after another.
      offsets: [source vocabulary + 1]; the likely words of source word s are `words[offsets[s] : offsets[s + 1]]`.
      size: V, size of the target vocabulary.
    """

    always: np.ndarray
    words: np.ndarray
    offsets: np.ndarray
    size: int

    def words_for(self, source: Tokens, *others: Tokens) -> np.ndarray:
        """Return the words that the translation of a source [S] may use, in ascending order.

        They are likely, frequent and special words, and `others`, such as those of a prefix. The likely words of the
        end symbol, which `source` has not, are included.
        """
        sources = {*map(int, source), EOS} if len(self.words) else ()
        likely = [self.words[self.offsets[s] : self.offsets[s + 1]] for s in sources]
        given = [np.asarray(other, np.int32) for other in others]
        return np.unique(np.concatenate([np.arange(SPECIAL, dtype=np.int32), self.always, *likely, *given]))

    def check(self, source_sizes: Sequence[int], target_size: int) -> None:
        """Raise ValueError for models whose vocabularies have other sizes."""
        words = len(self.offsets) - 1
        if self.size != target_size or (len(self.words) and {words} != {*source_sizes}):
            raise ValueError(
                f"the shortlist is for {words} source and {self.size} target words, but the models have {source_sizes} "
                f"and {target_size}: use one for their vocabularies"
            )


@struct.dataclass
class Selection:
    """The words of a batch. Each of D devices has its own words for its shard of the sentences.

    Attributes:
      words: [D, U] int32, ids of the words in ascending order; the last one is repeated to fill up to U.
      allowed: [B, U] bool, the words that each sentence may use.
    """

    words: Any
    allowed: Any


def union_size(count: int, most: int) -> int:
    """Return the size U for a union of `count` words, one of a few: at least 1024, in steps of an eighth to a quarter.

    A union that would be rounded up beyond the vocabulary's size, `most`, contains all words.
    """
    step = max(LEAST, 1 << (count - 1).bit_length()) // 8
    return min(round_up(max(count, LEAST), step), most)


def fixed_sizes(shortlist: Shortlist | None, rows: int) -> tuple[int, ...]:
    """Return the sizes U for batches of `rows` sentences when programs are compiled in advance: some words, and all.

    The words of 8 sentences are a seventh of a vocabulary of 6,400, those of 64 are two fifths. Without a shortlist
    there are no sizes.
    """
    if shortlist is None:
        return ()
    part = shortlist.size // (4 if rows <= SMALL_BATCH else 2)
    return union_size(max(1, part), shortlist.size), shortlist.size


def full_shortlist(size: int) -> Shortlist:
    """Return the shortlist of all words of a vocabulary. A search with it uses the programs of other shortlists."""
    none = np.zeros(0, np.int32)
    return Shortlist(always=np.arange(size, dtype=np.int32), words=none, offsets=none, size=size)


def select(allowed: Sequence[np.ndarray], size: int, most: int) -> Selection:
    """Return the selection of one device: of `allowed`, the words of each of B sentences, filled up to U = `size`.

    `most` is V.
    """
    rows = np.zeros((len(allowed), most), bool)
    for row, words in zip(rows, allowed, strict=True):
        row[words] = True
    union = np.flatnonzero(rows.any(axis=0)).astype(np.int32)
    padded = np.concatenate([union, np.full(size - len(union), union[-1], np.int32)])
    return Selection(words=padded[None], allowed=rows[:, padded] & (np.arange(size) < len(union)))


def selector(
    shortlist: Shortlist, plan: Sequence[Bucket], allowed: Sequence[np.ndarray], sizes: Sequence[int]
) -> Callable[[Sequence[Bucket]], Selection]:
    """Return a function that selects the words of batches of equal shape, one batch for each device.

    U is enough for the largest union of all batches of a shape, so that a shape is compiled once.

    Args:
      shortlist: the words of each source word.
      plan: all batches.
      allowed: for each sentence, what `Shortlist.words_for` returns.
      sizes: allowed sizes U in ascending order, the whole vocabulary last; if empty, those of `union_size`.
    """
    V, nothing = shortlist.size, shortlist.words_for(())
    counts: dict[tuple[int, int], int] = {}
    for bucket in plan:
        union = np.zeros(V, bool)
        for i in bucket.indices:
            union[allowed[i]] = True
        counts[bucket.shape] = max(counts.get(bucket.shape, 1), int(union.sum()))

    def selected(group: Sequence[Bucket]) -> Selection:
        count = counts[group[0].shape]
        U = next((size for size in sizes if size >= count), V) if sizes else union_size(count, V)
        parts = [select([nothing if i is None else allowed[i] for i in b.padded], U, V) for b in group]
        return Selection(*(np.concatenate(each) for each in zip(*((p.words, p.allowed) for p in parts), strict=True)))

    return selected


def word_indices(selection: Selection, device: int, tokens: Tokens) -> np.ndarray:
    """Convert tokens to indices into the words of a device, which are ascending and contain them."""
    return np.searchsorted(selection.words[device], np.asarray(tokens, np.int32))
