"""A tokenised split of a corpus, for training, validation or test."""

import dataclasses

import numpy as np

from convs2s_jax.data.parallel_text import ParallelText
from convs2s_jax.data.store import TokenStore


@dataclasses.dataclass(frozen=True)
class Split:
    """One split: its text and its token ids, side by side.

    Attributes:
      text: the lines.
      src: token ids of the sources.
      tgt: token ids of the targets.
      longest: sources are cut to this number of tokens, end symbol included; None for no cut.
    """

    text: ParallelText
    src: TokenStore
    tgt: TokenStore
    longest: int | None = None

    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of each source, after the cut, and of each target, end symbols included."""
        src = self.src.lengths + 1
        return src if self.longest is None else np.minimum(src, self.longest), self.tgt.lengths + 1
