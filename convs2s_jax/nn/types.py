"""Axis letters and array names used everywhere in the package.

Sequences: B batch, S source time, T target time or that of any sequence, P rows of a position table, W beam width,
N = B * W rows, Q = W * T queries per sentence. Channels: C in, D out, E embedding, F features of a sentence or inside a
feed-forward sublayer, O last layer before the softmax, V vocabulary, L labels, X any others. Convolutions: K kernel
width, R = (K - 1) r reach at dilation r, J input positions. Attention: H heads, A attentions of a decoder. Recurrent
cells: G gates, U units.
"""

from typing import Any

import jax
import jax.numpy as jnp

Array = jax.Array
Key = jax.Array
Tree = Any
"""A pytree of arrays, for functions that accept any structure."""

SQRT_HALF = 0.5**0.5
"""Halves the variance of a sum of two equally distributed terms (section 3.4)."""


def accumulation_dtype(dtype: Any) -> Any:
    """Return the dtype for accumulating sums and computing softmax: float64 for float64, float32 for all others."""
    return jnp.float64 if dtype == jnp.float64 else jnp.float32
