"""Convert between the parameters of fairseq's `lightconv` models and ours."""

import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from convs2s_jax.interop.fairseq.fitting import Place, fitted, with_copies
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.nn.trees import path_of

_PLACES = (
    (r"(\w+)/embedding/table", r"\1.embed_tokens.weight"),
    (r"(\w+)/embedding/positions", r"\1.embed_positions.weight"),
    (r"(\w+)/norm/(\w+)", r"\1.layer_norm.\2"),
    (r"decoder/output_kernel", r"decoder.output_projection.w"),
    (r"(\w+)/blocks/(\d+)/convolution/map_in/(\w)", r"\1.layers.\2.linear1.\3"),
    (r"(\w+)/blocks/(\d+)/convolution/map_out/(\w)", r"\1.layers.\2.linear2.\3"),
    (r"(\w+)/blocks/(\d+)/convolution/taps/scores", r"\1.layers.\2.conv.weight"),
    (r"(\w+)/blocks/(\d+)/convolution/taps/maker", r"\1.layers.\2.conv.weight_linear.weight"),
    (r"encoder/blocks/(\d+)/convolution/norm/(\w+)", r"encoder.layers.\1.layer_norm1.\2"),
    (r"decoder/blocks/(\d+)/convolution/norm/(\w+)", r"decoder.layers.\1.conv_layer_norm.\2"),
    (r"(\w+)/blocks/(\d+)/feed_forward/map_in/(\w)", r"\1.layers.\2.fc1.\3"),
    (r"(\w+)/blocks/(\d+)/feed_forward/map_out/(\w)", r"\1.layers.\2.fc2.\3"),
    (r"encoder/blocks/(\d+)/feed_forward/norm/(\w+)", r"encoder.layers.\1.layer_norm2.\2"),
    (r"decoder/blocks/(\d+)/feed_forward/norm/(\w+)", r"decoder.layers.\1.final_layer_norm.\2"),
    (r"decoder/blocks/(\d+)/attention/heads/(query|key|value)/(\w)", r"decoder.layers.\1.encoder_attn.\2_proj.\3"),
    (r"decoder/blocks/(\d+)/attention/heads/out/(\w)", r"decoder.layers.\1.encoder_attn.out_proj.\2"),
    (r"decoder/blocks/(\d+)/attention/norm/(\w+)", r"decoder.layers.\1.encoder_attn_layer_norm.\2"),
)
_LEAVES = {"w": "weight", "b": "bias", "scale": "weight"}
_LETTERS = {"query_proj": "q_proj", "key_proj": "k_proj", "value_proj": "v_proj"}
_OUTPUT = "decoder.output_projection.weight"
UNREAD = re.compile(r"(encoder|decoder)\.(version|embed_positions\._float_tensor|layers\.\d+\.conv\.conv_bias)")
"""Tensors that fairseq stores but does not use. Their values are arbitrary."""


def params_from_state_dict(cfg: ModelConfig, tensors: Mapping[str, Any]) -> Params:
    """Convert fairseq's state dict to parameters.

    Args:
      cfg: the model (`config_from_args`).
      tensors: arrays by fairseq's names, including those of 2019: layer_norms.0, one matrix for query, key and value,
        embed_out, kernels [H, K] of its CUDA layer. Buffers and the unused bias of its dynamic convolutions are
        ignored.

    Raises:
      UserError: names the tensors that are missing, surplus or misshapen.
    """
    tensors = _renamed(tensors)
    spare = {name for name in tensors if UNREAD.fullmatch(name)}
    return fitted(cfg, tensors, _place, output=_OUTPUT, spare=spare)


def whole_state_dict(cfg: ModelConfig, params: Params) -> dict[str, np.ndarray]:
    """Convert parameters to fairseq's `model.state_dict()`; the inverse of `params_from_state_dict`.

    A shared table appears under each of its names. The versions are 2, and the unused biases of fairseq's dynamic
    convolutions are zero.
    """
    tensors: dict[str, np.ndarray] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        at = _place(path_of(path), leaf.shape)
        tensors[at.name] = np.ascontiguousarray(at.back(np.asarray(leaf)))
    for name, kernel in list(tensors.items()):
        if name.endswith(".weight_linear.weight"):
            tensors[name.replace("weight_linear.weight", "conv_bias")] = np.zeros((1, 1, kernel.shape[1]), np.float32)
    versions = {f"{side}.version": np.array([2], np.float32) for side in ("encoder", "decoder")}
    return with_copies(cfg, tensors | versions, _OUTPUT)


def _renamed(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Rename and reshape the tensors of older checkpoints as in later ones.

    If both the older and the later name are present, the older is kept and later reported as surplus.
    """
    result: dict[str, Any] = {}
    for name, value in tensors.items():
        later = _later(name, value)
        result |= {name: value} if any(new != name and new in tensors for new in later) else later
    return result


def _later(name: str, value: Any) -> dict[str, Any]:
    """The later names and values of a tensor of an older checkpoint."""
    module, _, leaf = name.rpartition(".")
    if leaf in ("in_proj_weight", "in_proj_bias") and np.ndim(value) and len(value) % 3 == 0:
        parts = np.split(np.asarray(value), 3)
        return {f"{module}.{x}_proj.{leaf[8:]}": part for x, part in zip("qkv", parts, strict=True)}
    if name == "decoder.embed_out":
        return {_OUTPUT: value}
    if name.endswith(".conv.weight") and np.ndim(value) == 2:
        return {name: np.asarray(value)[:, None]}
    return {re.sub(r"\.layer_norms\.([01])\.", lambda m: f".layer_norm{int(m[1]) + 1}.", name): value}


def _place(path: str, shape: tuple[int, ...]) -> Place:
    """Where fairseq stores the parameter at a path: linear maps as [D, C], kernels as [H, 1, K] and [H K, C]."""
    for pattern, theirs in _PLACES:
        match = re.fullmatch(pattern, path)
        if match:
            *modules, leaf = match.expand(theirs).split(".")
            name = ".".join([*(_LETTERS.get(module, module) for module in modules), _LEAVES.get(leaf, leaf)])
            break
    else:
        raise ValueError(f"{path}: fairseq has no such parameter")
    if path.endswith("/scores"):
        width, heads = shape
        return Place(name, (heads, 1, width), lambda x: x[:, 0].T, lambda x: x.T[:, None])
    if path.endswith("/maker"):
        channels, width, heads = shape
        return Place(
            name,
            (heads * width, channels),
            lambda x: x.reshape(heads, width, channels).transpose(2, 1, 0),
            lambda x: x.transpose(2, 1, 0).reshape(heads * width, channels),
        )
    if path.endswith(("/w", "/output_kernel")):
        return Place(name, shape[::-1], np.transpose, np.transpose)
    return Place(name, shape, np.asarray, np.asarray)
