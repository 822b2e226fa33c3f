"""Axis letters and array names used everywhere in the package.

B batch, T target time, S source time, U any time, K kernel width, C channels in, D channels out, E embedding,
O last layer before the softmax, V vocabulary, W beam width, N = B * W rows, Q = W * T queries per sentence.
In a search: G groups, H = W // G hypotheses of a group, R = B * G rows.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

Array = jax.Array
Key = jax.Array
Initializer = Callable[[Key, tuple[int, ...]], Array]
Tree = Any
"""A pytree of arrays, for functions that accept any structure."""

SQRT_HALF = 0.5**0.5
"""Halves the variance of a sum of two equally distributed terms (section 3.4)."""


def accumulation_dtype(dtype: Any) -> Any:
    """The dtype in which sums are accumulated and softmax is computed: float64 for float64, float32 for all others."""
    return jnp.float64 if dtype == jnp.float64 else jnp.float32


def shardings_in_types() -> bool:
    """Whether types of arrays say how they are sharded, as in an update with `parallel=explicit`."""
    return jax.sharding.AxisType.Explicit in jax.sharding.get_abstract_mesh().axis_types
