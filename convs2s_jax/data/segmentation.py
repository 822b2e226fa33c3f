"""Sub-word regularisation: a new segmentation of the training text into sub-words for each epoch.

Kudo 2018, "Subword Regularization", draws a segmentation in proportion to the power `rate` of its probability under the
unigram model (section 3.2). Provilkov et al. 2020, "BPE-Dropout", leaves each merge out with the probability `rate`
(section 3).
"""

from collections.abc import Iterator, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from convs2s_jax.data.store import TokenStore, in_memory

_CHUNK = 4096  # lines drawn with one seed


@runtime_checkable
class Segmenter(Protocol):
    """A vocabulary whose tokens are parts of words, so that a text has many segmentations."""

    @property
    def size(self) -> int:
        """Number of ids, the special ones included."""

    def sample(self, texts: Sequence[str], *, rate: float, seed: int) -> list[list[int]]:
        """Token ids of a random segmentation of each text, without EOS; the same arguments give the same.

        Args:
          texts: the lines.
          rate: see the module; more random the lower it is for a unigram model, and the higher for merges.
          seed: from 0 to 2^32 - 2.
        """


def draw(texts: Sequence[str], vocabulary: Segmenter, *, rate: float, seed: Sequence[int]) -> TokenStore:
    """A random segmentation of every text, in memory.

    Args:
      texts: the lines.
      vocabulary: of their side.
      rate: as of `Segmenter.sample`.
      seed: numbers that determine the draw.
    """

    def drawn() -> Iterator[list[int]]:
        for number, first in enumerate(range(0, len(texts), _CHUNK)):
            bits = np.random.SeedSequence([*seed, number]).generate_state(1)[0]
            yield from vocabulary.sample(texts[first : first + _CHUNK], rate=rate, seed=int(bits) % (2**32 - 1))

    return in_memory(drawn(), size=vocabulary.size)


def within(drawn: TokenStore, best: TokenStore, longest: int) -> TokenStore:
    """The drawn sentences, but the best segmentation of those that are longer than `longest` tokens with their EOS.

    Args:
      drawn: token ids of sentences.
      best: those of the same sentences as the vocabulary encodes them.
      longest: most tokens, end symbol included.
    """
    long = drawn.lengths >= longest
    if not long.any():
        return drawn
    lengths = np.where(long, best.lengths, drawn.lengths)
    offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    begins = np.where(long, best.offsets[:-1] + len(drawn.tokens), drawn.offsets[:-1])
    where = np.repeat(begins - offsets[:-1], lengths) + np.arange(offsets[-1])
    return TokenStore(np.concatenate([drawn.tokens, best.tokens])[where], offsets)
