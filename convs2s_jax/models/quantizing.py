"""Quantisation of a trained model: which kernels become 8-bit integers for decoding (`nn.quantized`)."""

import dataclasses
from typing import Any, TypeVar

import jax

from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.quantized import is_quantized, quantize
from convs2s_jax.nn.trees import path_of

T = TypeVar("T")


def quantize_kernels(params: T) -> T:
    """Quantise the kernels of convolutions, of the other maps in blocks, and of the softmax to integers.

    Attention keeps floats, since its maps are small and ConvS2S applies them to the source
    (`attention.project_source`). Embedding tables, a softmax tied to one of them, cells of recurrent networks and
    blocks of SliceNet keep floats too.

    Args:
      params: merged parameters of an encoder-decoder, after `encoder_decoder.precompute`, which cannot read integers.
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
    """Whether any kernel is quantised to integers."""
    return any(map(is_quantized, jax.tree.leaves(params, is_leaf=is_quantized)))


def _chosen(path: str) -> bool:
    names = path.split("/")
    in_block = "blocks" in names and not {"attention", "steps"} & set(names)  # SliceNet's blocks have steps
    return names[-1] == "output" or in_block
