"""The gated linear unit against its formula."""

import numpy as np

from convs2s_jax.nn.convolution import glu
from tests.helpers import array


def test_glu_gates_the_first_half_with_the_second():
    x = np.random.default_rng(0).normal(size=(2, 3, 8))
    expected = np.zeros((2, 3, 4))
    for at in np.ndindex(2, 3):
        for c in range(4):
            expected[*at, c] = x[*at, c] / (1 + np.exp(-x[*at, 4 + c]))
    np.testing.assert_allclose(glu(array(x)), expected, rtol=1e-5, atol=1e-6)
