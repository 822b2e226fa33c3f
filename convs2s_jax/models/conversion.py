"""Conversion of the parameters of whole models: split for training, cast, precomputed, averaged, quantised."""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from convs2s_jax.models.checks import check_config, check_params
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params, PrecomputedParams, check_decoder, with_shared_table
from convs2s_jax.models.execution import matmul_precision_context
from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.embedding import Embedding
from convs2s_jax.nn.layer_norm import LayerNorm
from convs2s_jax.nn.quantized import Quantized, quantize
from convs2s_jax.nn.sharding import ShardedKernel
from convs2s_jax.nn.trees import nodes, path_of
from convs2s_jax.nn.types import Tree

T = TypeVar("T")


def split(params: Params, cfg: ModelConfig) -> Params:
    """Split kernels into direction and length for training (`nn.weight_norm`), in kinds that use it. Others stay."""
    check_params(params, Params)
    check_config(cfg, ModelConfig)
    if isinstance(params, PrecomputedParams):
        raise ValueError("params are precomputed for decoding: split those that `precompute` was called with")
    return weight_norm.split_normalised(params)


def cast(params: T, cfg: Any) -> T:
    """Cast parameters of any model to the dtype of its config. If that is float32, float64 stays as it is.

    Embeddings stay in float32, since their gradients add up row by row. So do the parameters of layer normalisation.
    """
    if cfg.dtype == "float32":
        return jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype in (jnp.bfloat16, jnp.float16) else x, params)
    whole = Embedding | LayerNorm | ShardedKernel | Quantized
    converted: T = jax.tree.map(
        lambda x: x if isinstance(x, Embedding | LayerNorm) else x.astype(cfg.dtype),
        params,
        is_leaf=lambda x: isinstance(x, whole),
    )
    return converted


def precompute(params: Params, cfg: ModelConfig) -> Params:
    """Precompute what the decoder computes from each word alone, so that each decoding step has less to do.

    Functions that compute with parameters accept the result in their place, without a key. Those that change, train or
    combine parameters do not, so call `average`, `split` and `update` first. Results are the same up to rounding. For
    decoders that precompute nothing, the parameters are returned in `cfg.dtype`.
    """
    if isinstance(params, PrecomputedParams):
        return params
    check_decoder(params, cfg)
    params = cast(params, cfg)
    precomputed = cfg.decoder.functions.precompute
    if precomputed is None:
        return params
    params = with_shared_table(params, cfg)
    with matmul_precision_context(cfg.matmul_precision):
        return PrecomputedParams(encoder=params.encoder, decoder=precomputed(params.decoder, cfg.decoder))


def for_one_hypothesis(params: Params, cfg: ModelConfig) -> Params:
    """Adapt precomputed parameters to a search with one hypothesis per sentence; others are returned unchanged."""
    if not isinstance(params, PrecomputedParams):
        return params
    return dataclasses.replace(params, decoder=cfg.decoder.functions.for_one_hypothesis(params.decoder))


def average(trees: Sequence[Tree]) -> Tree:
    """Average the parameters of several models:  w = (w_1 + ... + w_n) / n.

    Kernels are merged before they are averaged. The length of a direction v has no effect on the kernel but drifts
    during training, so an average of v and g would depend on it. (fairseq's average_checkpoints.py averages v and g.)

    Args:
      trees: a list of parameters of the same structure and shapes, as `init` returns them or split for training.
        Precomputed and quantised ones contain products and rounded numbers, whose mean is not that of the models.

    Returns:
      Parameters with plain kernels, in the dtype of the input.

    Raises:
      ValueError: an empty list, trees of different structure or shapes, or precomputed or quantised parameters.
    """
    if not isinstance(trees, Sequence):
        raise TypeError(f"trees is a {type(trees).__name__}: pass a list of the parameters of several models")
    if not trees:
        raise ValueError("trees is empty: averaging needs at least one model")
    if nodes(list(trees), (PrecomputedParams, Quantized)):
        raise ValueError(
            "trees contain precomputed or quantised parameters, whose mean is not the mean of the models: average the "
            "parameters first, then precompute"
        )
    merged = [weight_norm.merge(tree) for tree in trees]
    if len({jax.tree.structure(tree) for tree in merged}) > 1:
        raise ValueError("trees have different structures: only parameters of one configuration can be averaged")

    for leaves in zip(*map(jax.tree.leaves, merged), strict=True):
        if len(shapes := {leaf.shape for leaf in leaves}) > 1:
            raise ValueError(f"parameters of shapes {sorted(shapes)} cannot be averaged")
    return jax.tree.map(lambda *leaves: jnp.mean(jnp.stack(leaves), axis=0), *merged)


def quantize_kernels(params: T) -> T:
    """Quantise the kernels of convolutions, of the other maps in blocks, and of the softmax to integers.

    Attention keeps floats, since its maps are small and ConvS2S applies them to the source
    (`convs2s_fast.project_source`). Embedding tables, a softmax tied to one of them, cells of recurrent networks and
    blocks of SliceNet keep floats too.

    Args:
      params: merged parameters of an encoder-decoder, after `precompute`, which cannot read integers.
    """

    def each(path: tuple[Any, ...], node: Any) -> Any:
        names = path_of(path).split("/")
        if names[-1] == "output_kernel":
            return quantize(node)
        in_block = "blocks" in names and not {"attention", "steps"} & set(names)  # SliceNet's blocks have steps
        if isinstance(node, Affine) and not isinstance(node.w, Quantized) and (in_block or names[-1] == "output"):
            return dataclasses.replace(node, w=quantize(node.w))
        return node

    made: T = jax.tree_util.tree_map_with_path(each, params, is_leaf=lambda x: isinstance(x, Affine))
    return made


def has_integers(params: Any) -> bool:
    """Whether any kernel is quantised to integers."""
    return bool(nodes(params, Quantized))
