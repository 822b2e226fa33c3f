"""Sequences as rows of one array."""

import numpy as np
import pytest

from convs2s_jax.core.rows import pad_rows, round_up
from convs2s_jax.core.tokens import EOS, PAD


def test_rows_hold_sequences_then_an_end_symbol_then_padding():
    rows = pad_rows([np.array([5, 6], np.uint16), None, [], (7, 8, 9)], (5, 4))
    assert rows.dtype == np.int32
    assert rows.tolist() == [
        [5, 6, EOS, PAD],
        [PAD, PAD, PAD, PAD],
        [EOS, PAD, PAD, PAD],
        [7, 8, 9, EOS],
        [PAD, PAD, PAD, PAD],
    ]
    assert pad_rows([[5], []], (2, 2), end=False).tolist() == [[5, PAD], [PAD, PAD]]


@pytest.mark.parametrize("sequences", [[[4, 5, 6]], [[], [4]]])
def test_what_does_not_fit_is_refused(sequences):
    with pytest.raises(
        ValueError, match=r"sequence . needs . columns: it does not fit into an array of shape \(1, 3\)"
    ):
        pad_rows(sequences, (1, 3))


def test_rounding_up_is_to_the_next_multiple():
    assert [round_up(count, 8) for count in (0, 1, 8, 9)] == [0, 8, 8, 16]
