"""The gated linear unit (section 3.2; Dauphin et al. 2016)."""

import jax
import jax.numpy as jnp

from convs2s_jax.nn.types import Array


def glu(x: Array) -> Array:
    """Gated linear unit v([A B]) = A * sigmoid(B).

    Args:
      x: [..., 2C], A in the first C channels, the gate B in the last C.

    Returns:
      [..., C], in the dtype of x.
    """
    a, b = jnp.split(x, 2, axis=-1)
    return a * jax.nn.sigmoid(b)
