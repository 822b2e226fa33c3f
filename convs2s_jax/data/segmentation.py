"""Subword regularisation: a new segmentation of the training text into subwords in each epoch.

Kudo 2018, "Subword Regularization", samples a segmentation in proportion to its probability under the unigram model,
raised to the power `rate` (section 3.2). Provilkov et al. 2020, "BPE-Dropout", leaves out each merge with probability
`rate` (section 3).
"""

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from convs2s_jax.data.tokens_on_disk import TokenizedText, in_memory

_CHUNK = 4096  # number of lines sampled with one seed


@runtime_checkable
class Segmenter(Protocol):
    """A vocabulary of subwords, in which a text has many segmentations."""

    @property
    def size(self) -> int:
        """Number of ids, including the special ones."""

    @property
    def divides_words(self) -> bool:
        """Whether words consist of pieces; a SentencePiece model of whole words has one segmentation of each text."""

    def sample(self, texts: Sequence[str], *, rate: float, seed: int) -> list[list[int]]:
        """Return token ids of a random segmentation of each text, without EOS; the same arguments give the same ids.

        Args:
          texts: the lines.
          rate: see the module. Lower is more random for a unigram model, higher is more random for BPE.
          seed: from 0 to 2^32 - 2.
        """


def draw(texts: Sequence[str], vocabulary: Segmenter, *, rate: float, seed: Sequence[int]) -> TokenizedText:
    """Return a random segmentation of every text, in memory.

    Args:
      texts: the lines.
      vocabulary: of their side.
      rate: as in `Segmenter.sample`.
      seed: numbers that determine the sample.
    """

    def drawn() -> Iterator[list[int]]:
        for number, first in enumerate(range(0, len(texts), _CHUNK)):
            bits = np.random.SeedSequence([*seed, number]).generate_state(1)[0]
            yield from vocabulary.sample(texts[first : first + _CHUNK], rate=rate, seed=int(bits) % (2**32 - 1))

    return in_memory(drawn(), size=vocabulary.size)


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
