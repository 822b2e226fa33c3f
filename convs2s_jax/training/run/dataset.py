"""One part of a corpus, tokenised: what is trained on, validated or tested with."""

import dataclasses

import numpy as np

from convs2s_jax.data.store import TokenStore
from convs2s_jax.data.text import ParallelText


@dataclasses.dataclass(frozen=True)
class Split:
    """One split: its text and its token ids, side by side.

    Attributes:
      text: the lines.
      src: token ids of the sources.
      tgt: token ids of the targets.
      longest: sources are cut to so many tokens, the end symbol included; None leaves them whole.
    """

    text: ParallelText
    src: TokenStore
    tgt: TokenStore
    longest: int | None = None

    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of each source, as far as it is used, and of each target, end symbols counted."""
        src = self.src.lengths + 1
        return src if self.longest is None else np.minimum(src, self.longest), self.tgt.lengths + 1
