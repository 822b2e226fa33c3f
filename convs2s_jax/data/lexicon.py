"""A lexicon learned from parallel text: IBM model 1 (Brown et al. 1993, section 4.1) by expectation maximisation.

    p(t | s)  is proportional to  sum over sentence pairs, t in T, s in S, of  p(t | s) / sum_{s' in S} p(t | s')

S contains the source words of a pair and its end symbol, which represents words without a counterpart (the empty word
of the model). Probabilities are sparse. Only pairs of words that occur together have one. If there are too many for
memory, only the most frequent pairs of each source word are kept.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from convs2s_jax.core.tokens import EOS
from convs2s_jax.data.tokens_on_disk import TokenizedText

EVENTS = 1 << 23
"""Number of word pairs, one word from each side of a sentence pair, that are in memory at once."""
MOST = 1 << 25
"""Maximum number of distinct word pairs, 540 MB. With the memory for sorting, at most 2.8 GB were observed."""


class Lexicon(NamedTuple):
    """Probabilities p(t | s) of word pairs.

    Attributes:
      keys: [N], s * V + t, ascending; V is the size of the target vocabulary.
      probabilities: [N].
    """

    keys: np.ndarray
    probabilities: np.ndarray


def learn(src: TokenizedText, tgt: TokenizedText, rows: np.ndarray, *, target_size: int, iterations: int) -> Lexicon:
    """Learn IBM model 1 from parallel sentences.

    Args:
      src, tgt: both sides.
      rows: indices of the sentence pairs to learn from.
      target_size: V.
      iterations: number of iterations of expectation maximisation, at least 1, starting from equal probabilities.
    """
    lexicon = _first(src, tgt, rows, target_size)
    for _ in range(iterations - 1):
        mass = np.zeros(len(lexicon.keys))
        for events, starts, counts in _events(src, tgt, rows, target_size):
            keys, place_of = np.unique(events, return_inverse=True)
            place = np.minimum(np.searchsorted(lexicon.keys, keys), len(lexicon.keys) - 1)
            kept = lexicon.keys[place] == keys
            p = np.where(kept, lexicon.probabilities[place], 0.0)[place_of]
            total = np.add.reduceat(p, starts)
            share = p / np.repeat(np.where(total > 0, total, 1.0), counts)
            mass[place[kept]] += np.bincount(place_of, weights=share)[kept]
        lexicon = Lexicon(lexicon.keys, _normalised(lexicon.keys // target_size, mass))
    return lexicon


def likely(lexicon: Lexicon, *, source_size: int, target_size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the `count` most probable target words of each source word, and the start of each list.

    Returns:
      words [M] int32, concatenated over source words, and offsets [source_size + 1] int64.
    """
    source = lexicon.keys // target_size
    kept = _best(source, lexicon.probabilities, count) & (lexicon.probabilities > 0)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(source[kept], minlength=source_size))])
    return (lexicon.keys[kept] % target_size).astype(np.int32), offsets.astype(np.int64)


def _first(src: TokenizedText, tgt: TokenizedText, rows: np.ndarray, target_size: int) -> Lexicon:
    """Run the first iteration, where every source token of a pair has the same share in a target token."""
    parts = [(np.zeros(0, np.int64), np.zeros(0))]
    for events, _, counts in _events(src, tgt, rows, target_size):
        parts.append(_summed(events, np.repeat(1.0 / counts, counts)))
        if sum(len(keys) for keys, _ in parts[1:]) > MOST // 4:  # not each time, because this sorts all keys
            parts = [_merged(parts, target_size)]
    keys, mass = _merged(parts, target_size)
    return Lexicon(keys, _normalised(keys // target_size, mass))


def _merged(parts: Sequence[tuple[np.ndarray, np.ndarray]], target_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Merge keys and masses of all parts. If there are too many keys, keep the most frequent of each source word."""
    keys, mass = _summed(*(np.concatenate(arrays) for arrays in zip(*parts, strict=True)))
    if len(keys) <= MOST:
        return keys, mass
    source = keys // target_size
    kept = _best(source, mass, max(1, MOST // 2 // len(np.unique(source))))
    return keys[kept], mass[kept]


def _summed(keys: np.ndarray, mass: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the unique keys, ascending, with the sums of their masses."""
    unique, place_of = np.unique(keys, return_inverse=True)
    return unique, np.bincount(place_of, weights=mass, minlength=len(unique))


def _normalised(groups: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """Return masses divided by the sum of their group."""
    total = np.bincount(groups, weights=mass)
    return mass / np.where(total > 0, total, 1.0)[groups]


def _best(groups: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """Return a mask of the `count` largest values of each group; `groups` are ascending."""
    order = np.lexsort((-values, groups))
    first = np.searchsorted(groups, groups)  # start of each position's group; `order` does not move the groups
    mask = np.zeros(len(groups), bool)
    mask[order[np.arange(len(groups)) - first < count]] = True
    return mask


def _events(
    src: TokenizedText, tgt: TokenizedText, rows: np.ndarray, target_size: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield all token pairs of the sentence pairs `rows` in blocks. Sentence pairs with an empty side have none.

    Yields:
      The keys s * V + t of all pairs, contiguous for each target token; for each target token, its first pair and the
      number of its pairs, which is the source length including the end symbol.
    """
    S, T = src.lengths[rows].astype(np.int64), tgt.lengths[rows].astype(np.int64)
    rows, S, T = (x[(S > 0) & (T > 0)] for x in (rows, S, T))
    done = np.cumsum((S + 1) * T)
    at = 0
    while at < len(rows):
        end = max(at + 1, int(np.searchsorted(done, (done[at - 1] if at else 0) + EVENTS, side="right")))
        here, s_len, t_len = rows[at:end], S[at:end], T[at:end]
        ended = np.full(int(np.sum(s_len + 1)), EOS, np.int64)  # the sources, each with its end symbol
        begin = np.cumsum(s_len + 1) - (s_len + 1)
        ended[_ranges(begin, s_len)] = src.tokens[_ranges(src.offsets[here], s_len)]
        t = tgt.tokens[_ranges(tgt.offsets[here], t_len)].astype(np.int64)
        counts = np.repeat(s_len + 1, t_len)
        s = ended[_ranges(np.repeat(begin, t_len), counts)]
        yield s * target_size + np.repeat(t, counts), np.cumsum(counts) - counts, counts
        at = end


def _ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the concatenated ranges start, start + 1, ..., start + length - 1."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)
