"""Parameter averaging over several models, such as the last checkpoints of a run (Wu et al. 2019 use 10)."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from convs2s_jax.models.encoder_decoder import PrecomputedParams
from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.quantized import Quantized
from convs2s_jax.nn.types import Array, Tree


def average(trees: Sequence[Tree]) -> Tree:
    """Average the parameters of several models:  w = (w_1 + ... + w_n) / n.

    Kernels are merged before they are averaged. The length of a direction v has no effect on the kernel but drifts
    during training, so an average of v and g would depend on it. (fairseq's average_checkpoints.py averages v and g.)

    Args:
      trees: a list of parameters of the same structure and shapes. Each can be as `init` returns it or as it is
        trained, with kernels split into direction and length. Precomputed and quantised parameters are rejected: they
        contain products and rounded numbers, whose mean is not the mean of the models.

    Returns:
      Parameters with plain kernels, in the dtype of the input.

    Raises:
      TypeError: not a list or tuple.
      ValueError: an empty list, trees of different structure or shapes, or precomputed or quantised parameters.
    """
    if not isinstance(trees, list | tuple):
        raise TypeError(f"trees is a {type(trees).__name__}: expected a list of parameters, such as [params, params]")
    if not trees:
        raise ValueError("trees is empty: averaging needs at least one model")
    if any(_is_derived(node) for node in jax.tree.leaves(list(trees), is_leaf=_is_derived)):
        raise ValueError(
            "trees contain precomputed or quantised parameters, whose mean is not the mean of the models: average the "
            "parameters first, then precompute"
        )
    merged = [weight_norm.merge(tree) for tree in trees]
    if len({jax.tree.structure(tree) for tree in merged}) > 1:
        raise ValueError("trees have different structures: only parameters of one configuration can be averaged")

    def mean(*leaves: Array) -> Array:
        shapes = {leaf.shape for leaf in leaves}
        if len(shapes) > 1:
            raise ValueError(f"parameters of shapes {sorted(shapes)} cannot be averaged")
        return jnp.mean(jnp.stack(leaves), axis=0)

    return jax.tree.map(mean, *merged)


def _is_derived(node: Any) -> bool:
    """Whether the node contains products of parameters, or rounded parameters."""
    return isinstance(node, PrecomputedParams | Quantized)
