"""One part of a corpus, tokenised: what is trained on, validated or tested with."""

import dataclasses

import numpy as np

from convs2s_jax.data.corpus import ParallelText
from convs2s_jax.data.store import TokenStore


@dataclasses.dataclass(frozen=True)
class Split:
    """One split: its text and its token ids, side by side."""

    text: ParallelText
    src: TokenStore
    tgt: TokenStore

    def lengths(self) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of each source and target, end symbols counted."""
        return self.src.lengths + 1, self.tgt.lengths + 1
