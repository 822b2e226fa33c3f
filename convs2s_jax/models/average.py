"""Averages of the parameters of several models, such as the last checkpoints of a run (Wu et al. 2019 use 10)."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.types import Array, Tree


def average(trees: Sequence[Tree]) -> Tree:
    """Mean of the kernels w of several models:  w = (w_1 + ... + w_n) / n.

    The mean is taken over merged kernels. The length of a direction v has no effect on the kernel, and it drifts in
    training; a mean of v and g would depend on it. (fairseq's average_checkpoints.py takes the mean of v and g.)

    Args:
      trees: parameters of the same structure and shapes, with weight normalisation split or merged.

    Returns:
      Merged parameters in the dtype given.

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
