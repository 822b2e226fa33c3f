"""Which kernels of a trained model decoding computes with in 8-bit integers (`nn.quantized`)."""

import dataclasses
from typing import Any, TypeVar

import jax

from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.quantized import is_quantized, quantize
from convs2s_jax.nn.trees import path_of

T = TypeVar("T")


def quantize_kernels(params: T) -> T:
    """The parameters with the kernels of convolutions, of the other maps in blocks, and of the softmax in integers.

    Attention keeps floats: its maps are small, and ConvS2S applies them to the source (`attention.project_source`). So
    do embedding tables, and a softmax whose kernel is one of them; cells of recurrent networks; blocks of SliceNet.

    Args:
      params: merged ones, of an encoder with a decoder, best after `encoder_decoder.precompute`.
    """

    def each(path: tuple[Any, ...], node: Any) -> Any:
        if path_of(path).endswith("/output_kernel"):
            return quantize(node)
        if not isinstance(node, Affine) or not _chosen(path_of(path)) or is_quantized(node.w):
            return node
        return dataclasses.replace(node, w=quantize(node.w))

    made: T = jax.tree_util.tree_map_with_path(each, params, is_leaf=lambda x: isinstance(x, Affine))
    return made


def has_integers(params: Any) -> bool:
    """Whether any kernel is in integers."""
    return any(map(is_quantized, jax.tree.leaves(params, is_leaf=is_quantized)))


def _chosen(path: str) -> bool:
    names = path.split("/")
    in_block = "blocks" in names and not {"attention", "steps"} & set(names)  # SliceNet's blocks have steps
    return names[-1] == "output" or in_block
