"""Sources as models read them: truncated to their positions, in rows, and how long their translations may be."""

from collections.abc import Sequence

import numpy as np

from convs2s_jax.core.rows import pad_rows
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.search.config import SearchConfig


def truncated(sources: Sequence[np.ndarray], cfgs: Sequence[ModelConfig]) -> tuple[list[np.ndarray], list[int]]:
    """Truncate sources to the models' positions. Return them, and how many tokens of each were removed."""
    room = min(c.max_source for c in cfgs) - 1
    return [source[:room] for source in sources], [max(0, len(source) - room) for source in sources]


def max_output_length(cfgs: Sequence[ModelConfig], search: SearchConfig, source_length: int) -> int:
    """Return the maximum number of tokens before the end symbol; `source_length` includes the end symbol."""
    return min(search.max_length(source_length), *(c.max_target - 1 for c in cfgs))


def source_rows(sources: Sequence[np.ndarray], indices: Sequence[int | None], width: int) -> np.ndarray:
    """Return rows of source tokens, end symbol and PAD, [len(indices), width]; empty rows have an end symbol only.

    Args:
      sources: token ids without the end symbol.
      indices: indices of the sentences, None for empty rows.
      width: number of columns.
    """
    return pad_rows([() if i is None else sources[i] for i in indices], (len(indices), width))
