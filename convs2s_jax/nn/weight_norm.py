"""Weight normalisation as a change of parameters (Salimans and Kingma 2016; section 3.5 and 4.2 of the paper).

    w = g v / ||v||

The layers know nothing of it: `split` turns every kernel of a tree into direction v and length g for the optimiser to
train, `merge` gives the kernels back inside the loss, and once before decoding. Tables, biases and a tied output stay.
"""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp

from convs2s_jax.nn.affine import Affine, Kernel
from convs2s_jax.nn.types import Array, Tree


@flax.struct.dataclass
class Normed:
    """A kernel as direction and length.

    v: the kernel's shape; g: as many axes, of length 1 where the norm is taken: [1, D] or [1, 1, D], one length for
    each output channel; [1, C] of a depthwise kernel, its norm over the taps. (Checkpoints of fairseq before version 2
    hold [K, 1, 1] in the decoder: `merge` reads both.)
    """

    v: Array
    g: Array


def split(params: Tree) -> Tree:
    """Replace each kernel w of the tree by Normed(v=w, g=||w||), the norm over all axes but the last."""

    def normed(layer: Tree) -> Tree:
        if not isinstance(layer, Affine | Kernel):
            return layer
        g = jnp.sqrt(jnp.sum(jnp.square(layer.w), axis=range(layer.w.ndim - 1), keepdims=True))
        return dataclasses.replace(layer, w=Normed(v=layer.w, g=g))

    return jax.tree.map(normed, params, is_leaf=lambda x: isinstance(x, Affine | Kernel))


def merge(params: Tree) -> Tree:
    """Replace each Normed by w = g v / ||v||; other leaves stay. Trees without any come back as they are."""
    return jax.tree.map(
        lambda x: kernel(x) if isinstance(x, Normed) else x, params, is_leaf=lambda x: isinstance(x, Normed)
    )


def kernel(normed: Normed) -> Array:
    """w = g v / ||v||, the norm over the axes in which g has length 1."""
    v, g = normed.v, normed.g
    axes = [axis for axis, size in enumerate(g.shape) if size == 1]
    return v * (g / jnp.sqrt(jnp.sum(jnp.square(v), axis=axes, keepdims=True)))
