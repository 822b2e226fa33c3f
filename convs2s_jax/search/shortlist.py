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
from typing import Any, NamedTuple

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

        They are likely, frequent and special words, and `others`.

        Args:
          source: token ids without the end symbol; the likely words of the end symbol are included anyway.
          others: more target words that the translation may use, such as those of a prefix.
        """
        sources = {*map(int, source), EOS} if len(self.words) else ()
        likely = [self.words[self.offsets[s] : self.offsets[s + 1]] for s in sources]
        given = [np.asarray(other, np.int32) for other in others]
        return np.unique(np.concatenate([np.arange(SPECIAL, dtype=np.int32), self.always, *likely, *given]))

    def check(self, source_sizes: Sequence[int], target_size: int) -> None:
        """Raise ValueError for models whose vocabularies have other sizes."""
        if self.size != target_size:
            raise ValueError(
                f"the shortlist is for {self.size} target words, but the models have {target_size}: use one for their "
                "vocabulary"
            )
        words = len(self.offsets) - 1
        other = [size for size in source_sizes if size != words]
        if len(self.words) and other:
            raise ValueError(
                f"the shortlist is for {words} source words, but a model has {other[0]}: use one for its vocabulary"
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

    Args:
      count: number of words in the union.
      most: V, the maximum; a union that would be rounded up beyond it contains all words.
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
    return Shortlist(always=np.arange(size, dtype=np.int32), words=none, offsets=np.zeros(0, np.int32), size=size)


def select(allowed: Sequence[np.ndarray], size: int, most: int) -> Selection:
    """Return the selection of one device.

    Args:
      allowed: the words of each of B sentences.
      size: U, at least the number of words in the union.
      most: V.
    """
    rows = np.zeros((len(allowed), most), bool)
    for row, words in zip(rows, allowed, strict=True):
        row[words] = True
    union = np.flatnonzero(rows.any(axis=0)).astype(np.int32)
    padded = np.concatenate([union, np.full(size - len(union), union[-1], np.int32)])
    return Selection(words=padded[None], allowed=rows[:, padded] & (np.arange(size) < len(union)))


class BatchConstraints(NamedTuple):
    """The words, prefixes and phrases of the rows of some batches, with tokens as indices into the words.

    Attributes:
      selection: the words; None for all words, whose indices are their ids.
      prefixes: for each row, tokens that its translation must begin with.
      phrases: for each row, token sequences that must occur in its translation.
    """

    selection: Selection | None
    prefixes: list[Tokens]
    phrases: list[Sequence[Tokens]]


def batch_constraints_of(
    shortlist: Shortlist | None,
    plan: Sequence[Bucket],
    sources: Sequence[np.ndarray],
    prefixes: Sequence[Tokens],
    phrases: Sequence[Sequence[Tokens]],
    *,
    sizes: Sequence[int] = (),
) -> Callable[[Sequence[Bucket]], BatchConstraints]:
    """Return a function that computes the `BatchConstraints` of some batches of a plan, one for each device.

    U is enough for the largest union of all batches of a shape, so that a shape is compiled once.

    Args:
      shortlist: None for all words.
      plan: all batches.
      sources: token ids of all sentences, without the end symbol, truncated to what the model reads.
      prefixes, phrases: required tokens of all sentences; a sentence may always use them.
      sizes: allowed sizes of selections, in ascending order, the whole vocabulary last; if empty, those of
        `union_size`.
    """
    allowed: list[np.ndarray] = []
    counts: dict[tuple[int, int], int] = {}
    if shortlist is not None:
        given = zip(sources, prefixes, phrases, strict=True)
        allowed = [shortlist.words_for(source, prefix, *wanted) for source, prefix, wanted in given]
        for bucket in plan:
            union = np.zeros(shortlist.size, bool)
            for i in bucket.indices:
                union[allowed[i]] = True
            counts[bucket.shape] = max(counts.get(bucket.shape, 1), int(union.sum()))

    def selection_of(shortlist: Shortlist, group: Sequence[Bucket]) -> Selection:
        V, count, nothing = shortlist.size, counts[group[0].shape], shortlist.words_for(())
        U = next((size for size in sizes if size >= count), V) if sizes else union_size(count, V)
        rows = [[nothing if i is None else allowed[i] for i in bucket.padded] for bucket in group]
        parts = [select(each, U, V) for each in rows]
        return Selection(*(np.concatenate(each) for each in zip(*((p.words, p.allowed) for p in parts), strict=True)))

    def constraints(group: Sequence[Bucket]) -> BatchConstraints:
        """Rows without a sentence have no prefix and no phrases."""
        selection = None if shortlist is None else selection_of(shortlist, group)
        found = BatchConstraints(selection, [], [])
        for device, bucket in enumerate(group):
            words = None if selection is None else selection.words[device]
            for i in bucket.padded:
                found.prefixes.append(() if i is None else _word_indices(words, prefixes[i]))
                found.phrases.append(() if i is None else [_word_indices(words, phrase) for phrase in phrases[i]])
        return found

    return constraints


def _word_indices(words: np.ndarray | None, tokens: Tokens) -> Tokens:
    """Convert tokens to indices into `words` [U], which are ascending and contain them; None for all words."""
    return tokens if words is None else np.searchsorted(words, np.asarray(tokens, np.int32))
