"""Weight normalisation as a reparametrisation (Salimans and Kingma 2016; sections 3.5 and 4.2 of the paper).

    w = g v / ||v||

The layers only see kernels w. `split` turns every kernel of a tree into a direction v and a length g, which the
optimiser trains. `merge` computes the kernels again, inside the loss and once before decoding. Embedding tables, biases
and a tied output are not changed.
"""

import dataclasses

import jax.numpy as jnp

from convs2s_jax.nn import struct
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.depthwise import Kernel
from convs2s_jax.nn.trees import T, map_nodes, nodes
from convs2s_jax.nn.types import Array, Tree


@struct.dataclass
class Normed:
    """A kernel as direction and length.

    Attributes:
      v: direction, in the shape of the kernel.
      g: length, with the same number of axes. Axes over which the norm is computed have length 1: [1, D] or [1, 1, D]
        for one length per output channel, [1, C] for one per channel of a depthwise kernel. (Decoders of fairseq
        checkpoints before version 2 have [K, 1, 1], which `merge` accepts too.)
    """

    v: Array
    g: Array


LAYERS = Affine, Kernel


def split(params: Tree) -> Tree:
    """Replace each kernel w of the tree with `normed(w)`. Those that are split already stay."""

    def each(layer: Affine | Kernel) -> Tree:
        return layer if isinstance(layer.w, Normed) else dataclasses.replace(layer, w=normed(layer.w))

    return map_nodes(each, params, LAYERS)


class Normalised:
    """Base class of records of parameters that are trained with weight normalisation."""


def split_normalised(params: T) -> T:
    """Split the kernels within the `Normalised` records of a tree."""
    return map_nodes(split, params, Normalised)


def needs_split(params: Tree) -> bool:
    """Whether a kernel within a `Normalised` record is not split."""
    layers = [layer for record in nodes(params, Normalised) for layer in nodes(record, LAYERS)]
    return any(not isinstance(layer.w, Normed) for layer in layers)


def normed(w: Array) -> Normed:
    """Split a kernel into v = w and g = ||w||, the norm over all axes but the last.

    An output channel of zeros, or of numbers whose squares underflow to zero in this dtype, has no direction. Here
    v = 1 and g = 0, which gives zeros, while v = w would give NaN. Derivatives are 0.
    """
    axes = range(w.ndim - 1)
    squares = jnp.sum(jnp.square(w), axis=axes, keepdims=True)
    g = jnp.where(squares == 0, 0.0, jnp.sqrt(jnp.where(squares == 0, 1.0, squares)))  # the root of 0 has no derivative
    return Normed(v=jnp.where(g == 0, jnp.ones_like(w), w), g=g)


def merge(params: Tree) -> Tree:
    """Replace each Normed with w = g v / ||v||. Other leaves are unchanged."""
    return map_nodes(kernel, params, Normed)


def unsplit(params: Tree) -> Tree:
    """Undo `split` for kernels that have not been trained since:  w = v, and w = 0 where g = 0.

    The result is bit-exact, while `merge` may round the last bit.
    """
    return map_nodes(lambda x: jnp.where(x.g == 0, jnp.zeros_like(x.v), x.v), params, Normed)


def kernel(normed: Normed) -> Array:
    """Compute w = g v / ||v||, with the norm over the axes where g has length 1."""
    v, g = normed.v, normed.g
    axes = [axis for axis, size in enumerate(g.shape) if size == 1]
    return v * (g / jnp.sqrt(jnp.sum(jnp.square(v), axis=axes, keepdims=True)))
