"""Averages of the parameters of several models, as of the last checkpoints of a run (Wu et al. 2019 decode with 10)."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.types import Array, Tree


def average(trees: Sequence[Tree]) -> Tree:
    """Mean of the kernels w of several models:  w = (w_1 + ... + w_n) / n.

    The mean is taken of merged kernels. A direction v counts only up to its length, which weight norm leaves free and
    training lets drift apart; the mean of v and g would be another kernel for another choice of those lengths.
    (fairseq's average_checkpoints.py takes the mean of v and g.)

    Args:
      trees: parameters of one structure and shape, with weight norm split or merged.

    Returns:
      Merged parameters, dtype as given.

    Raises:
      ValueError: no tree, or trees of different structure or shapes.
    """
    if not trees:
        raise ValueError("trees is empty: an average needs one model or more")
    merged = [weight_norm.merge(tree) for tree in trees]

    def mean(*leaves: Array) -> Array:
        shapes = {leaf.shape for leaf in leaves}
        if len(shapes) > 1:
            raise ValueError(f"parameters of shapes {sorted(shapes)} have no average")
        return jnp.mean(jnp.stack(leaves), axis=0)

    return jax.tree.map(mean, *merged)
