"""Subword regularisation: a new segmentation of the training text into subwords in each epoch.

Kudo 2018, "Subword Regularization", samples a segmentation in proportion to its probability under the unigram model,
raised to the power `rate` (section 3.2). Provilkov et al. 2020, "BPE-Dropout", leaves out each merge with probability
`rate` (section 3).

Segmentations are sampled here and not by SentencePiece, whose version 0.2.3 seeds its generator differently in every
process, whatever the given seed. With it, neither a continued run nor the processes of a run would see the same text.
"""

import functools
import itertools
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from convs2s_jax.core.files import writing
from convs2s_jax.data.bpe_codes import merged_at_random, of_words
from convs2s_jax.data.lines import BLOCK, TemporaryFolder
from convs2s_jax.data.processes import Parts, Progress, Share
from convs2s_jax.data.symbols import Vocabulary
from convs2s_jax.data.tokens_on_disk import TokenizedText, in_memory

_SPACE = "\u2581"
_UNKNOWN_PENALTY = 10.0
"""Score penalty of an unknown character relative to the least likely piece, as in SentencePiece's unigram models."""
RANGE = 1 << 16
"""Number of lines that a process samples at once, a multiple of `BLOCK`. Each block has a seed of its own."""


class _Edge(NamedTuple):
    """A piece of a word: its end, and its log weight."""

    end: int
    weight: float


class RandomPieces:
    """Samples segmentations under one model."""

    def __init__(self, processor: Any) -> None:
        """Read the pieces of SentencePiece's processor."""
        self._processor = processor
        special = processor.is_control, processor.is_unknown, processor.is_unused, processor.is_byte
        ids = [i for i in range(processor.get_piece_size()) if not any(one(i) for one in special)]
        self._scores: Mapping[str, float] = {processor.id_to_piece(i): processor.get_score(i) for i in ids}
        self._longest = max(map(len, self._scores), default=1)
        self._unknown = min(self._scores.values(), default=0.0) - _UNKNOWN_PENALTY
        self._bytes = any(map(processor.is_byte, range(processor.get_piece_size())))
        # user-defined symbols are never split; their score is 0, that of a piece is a rank from -0 down, or below 0
        own = sorted((piece for piece, score in self._scores.items() if str(score) == "0.0"), key=len, reverse=True)
        self._own = re.compile("|".join(map(re.escape, own))) if own else None
        across = any(_SPACE in piece[1:] for piece in self._scores)
        self._words = re.compile(".+" if across else f"{_SPACE}[^{_SPACE}]*|[^{_SPACE}]+", re.DOTALL)

    @functools.cached_property
    def merges(self) -> bool:
        """Whether the model merges letters (byte-pair encoding). Then its scores are the ranks of the pieces."""
        return all(score <= 0 and score == int(score) for score in self._scores.values())

    def draw(self, text: str, *, rate: float, rng: random.Random) -> list[str]:
        """Return the pieces of a random segmentation of a text. A run of unknown characters is one piece.

        Args:
          text: as SentencePiece reads it.
          rate: for BPE, the probability of leaving out a merge; otherwise the power to which probabilities are raised.
          rng: random number generator.
        """
        segment = self._merged if self.merges else self._path
        pieces: list[str] = []
        for part, own in self._parts(self._processor.normalize(text)):
            pieces += [part] if own else (one for word in self._words.findall(part) for one in segment(word, rate, rng))
        return self._with_unknown(pieces)

    def _parts(self, text: str) -> Iterator[tuple[str, bool]]:
        """Yield the parts of a text, and whether each is a user-defined symbol."""
        begin = 0
        for found in self._own.finditer(text) if self._own else ():
            yield text[begin : found.start()], False
            yield found[0], True
            begin = found.end()
        yield text[begin:], False

    def _merged(self, word: str, rate: float, rng: random.Random) -> list[str]:
        """Merge letters at random. A pair has the rank of the piece that it forms."""
        return merged_at_random(word, self._rank, rate=rate, rng=rng)

    def _rank(self, left: str, right: str) -> float | None:
        score = self._scores.get(left + right)
        return None if score is None else -score

    def _path(self, word: str, rate: float, rng: random.Random) -> list[str]:
        """Sample a path through the pieces of a word from start to end, by the total weight of its continuations."""
        edges, after = self._weights(word, rate)
        parts, i = [], 0
        while i < len(word):
            left = rng.random()
            for edge in edges[i]:
                left -= math.exp(edge.weight + after[edge.end] - after[i])
                if left < 0:
                    break
            parts.append(word[i : edge.end])
            i = edge.end
        return parts

    @functools.cached_property
    def _weights(self) -> Any:
        return of_words(self._weights_of)

    def _weights_of(self, word: str, rate: float) -> tuple[list[list[_Edge]], list[float]]:
        """Return the pieces that begin at each position, and the log of the total weight of all paths from there."""
        n = len(word)
        edges: list[list[_Edge]] = []
        for i in range(n):
            ends = range(i + 1, min(n, i + self._longest) + 1)
            found = [_Edge(j, rate * self._scores[word[i:j]]) for j in ends if word[i:j] in self._scores]
            alone = bool(found) and found[0].end == i + 1
            edges.append(found if alone else [_Edge(i + 1, rate * self._unknown), *found])
        after = [0.0] * (n + 1)
        for i in reversed(range(n)):
            weights = [edge.weight + after[edge.end] for edge in edges[i]]
            most = max(weights)
            after[i] = most + math.log(sum(math.exp(weight - most) for weight in weights))
        return edges, after

    def _with_unknown(self, pieces: Sequence[str]) -> list[str]:
        """Replace unknown characters by their bytes if the model has byte pieces, and otherwise join unknown runs."""
        found: list[str] = []
        for known, run in itertools.groupby(pieces, self._scores.__contains__):
            if known:
                found += run
            elif self._bytes:
                found += [f"<0x{byte:02X}>" for piece in run for byte in piece.encode("utf-8")]
            else:
                found.append("".join(run))
        return found


def draw(
    texts: Sequence[str], vocabulary: Vocabulary, folder: Path, *, rate: float, seed: Sequence[int], share: Share
) -> TokenizedText:
    """Return a random segmentation of every text, in memory.

    Args:
      texts, vocabulary: the lines, and the vocabulary of their side.
      folder: for temporary files.
      rate: as in `Vocabulary.sample`.
      seed: numbers that determine the sample.
      share: does the ranges of a text of more than `RANGE` lines.
    """
    rows, sample = range(len(texts)), functools.partial(_sampled, texts, vocabulary, rate, seed)
    if len(rows) <= RANGE:
        return sample(rows, lambda _: None)
    ranges = [rows[i : i + RANGE] for i in rows[::RANGE]]
    with writing(folder, "choose another data.cache_dir"):
        place = TemporaryFolder(folder)
        task = functools.partial(functools.partial, sample)  # rows -> a function that samples them
        share(Parts({one: len(one) for one in ranges}, task, functools.partial(_save, place.name)), lambda _: None)
        parts = [np.load(f"{place.name}/{one.start}.npz") for one in ranges]
        tokens, lengths = (np.concatenate([part[name] for part in parts]) for name in ("tokens", "lengths"))
        return TokenizedText(tokens, np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))


def _sampled(
    texts: Sequence[str], vocabulary: Vocabulary, rate: float, seed: Sequence[int], rows: range, progress: Progress
) -> TokenizedText:
    """Sample these lines of a text, whose first one begins a block of its own seed."""

    def drawn() -> Iterator[list[int]]:
        for first in rows[::BLOCK]:
            bits = np.random.SeedSequence([*seed, first // BLOCK]).generate_state(1)[0]
            block = texts[first : min(first + BLOCK, rows.stop)]
            yield from vocabulary.sample(block, rate=rate, seed=int(bits) % (2**32 - 1))
            progress(len(block))

    return in_memory(drawn(), size=vocabulary.size)


def _save(place: str, rows: range, text: TokenizedText) -> None:
    np.savez(f"{place}/{rows.start}.npz", tokens=text.tokens, lengths=text.lengths)


def within(drawn: TokenizedText, best: TokenizedText, longest: int) -> TokenizedText:
    """Return the sampled sentences, with the best segmentation in place of those longer than `longest` tokens.

    Args:
      drawn: sampled token ids of sentences.
      best: token ids of the same sentences as the vocabulary encodes them.
      longest: maximum number of tokens, including the end symbol.
    """
    long = drawn.lengths >= longest
    if not long.any():
        return drawn
    lengths = np.where(long, best.lengths, drawn.lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    begins = np.where(long, best.offsets[:-1] + len(drawn.tokens), drawn.offsets[:-1])
    where = np.repeat(begins - offsets[:-1], lengths) + np.arange(offsets[-1])
    return TokenizedText(np.concatenate([drawn.tokens, best.tokens])[where], offsets)
