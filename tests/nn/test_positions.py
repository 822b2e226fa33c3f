"""Sinusoidal positions against their formula and against fairseq's in PyTorch's float32."""

import math

import numpy as np
import pytest

from convs2s_jax.core.tokens import PAD
from convs2s_jax.nn.embedding import sinusoidal


def test_first_half_are_sines_and_second_half_cosines_of_falling_frequency():
    table = sinusoidal(40, 12)
    assert (table.shape, table.dtype) == ((40, 12), np.float32)
    for n, i in np.ndindex(40, 6):
        angle = n * 10000 ** (-i / 5)
        expected = (0.0, 0.0) if n == PAD else (math.sin(angle), math.cos(angle))
        np.testing.assert_allclose(table[n, [i, 6 + i]], expected, atol=1e-5)


def test_the_table_is_that_of_fairseq_up_to_the_rounding_of_angles():
    """At place n the angle is n times a frequency, whose last bit may fall otherwise: n times 2**-24, twice allowed."""
    pytest.importorskip("torch")
    from tests.interop.light_reference import positions_table

    difference = np.abs(sinusoidal(1024, 256) - positions_table(1024, 256).numpy())
    assert (difference <= 2**-23 * np.maximum(np.arange(1024), 1)[:, None]).all()
    assert np.median(difference) == 0.0
