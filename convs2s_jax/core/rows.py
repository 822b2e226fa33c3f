"""Pad sequences of different lengths to the rows of a numpy array on the host."""

from collections.abc import Iterable, Sequence

import numpy as np

from convs2s_jax.core.tokens import EOS, PAD

Tokens = Sequence[int] | np.ndarray


def pad_rows(sequences: Iterable[Tokens | None], shape: tuple[int, int], *, end: bool = True) -> np.ndarray:
    """Return one row per sequence with its tokens, the end symbol and padding: [rows, width] int32.

    Args:
      sequences: token ids, at most `rows` sequences. Rows for None and rows without a sequence are all PAD.
      shape: (rows, width).
      end: whether each sequence is followed by EOS.

    Raises:
      ValueError: more sequences than rows, or one longer than the width.
    """
    rows = np.full(shape, PAD, np.int32)
    for i, tokens in enumerate(sequences):
        if tokens is None:
            continue
        length = len(tokens) + end
        if i >= shape[0] or length > shape[1]:
            raise ValueError(f"sequence {i} needs {length} columns: it does not fit into an array of shape {shape}")
        rows[i, : len(tokens)] = tokens
        if end:
            rows[i, len(tokens)] = EOS
    return rows


def round_up(count: int, multiple: int) -> int:
    """Return the smallest multiple of `multiple` that is at least `count`."""
    return -(-count // multiple) * multiple
