"""Convert between the parameters of fairseq's `fconv` models and ours.

The values are the same. fairseq stores a linear map as [D, C], we store it as [C, D].
"""

import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from convs2s_jax.core.errors import UserError
from convs2s_jax.interop.fairseq.fitting import Place, fitted, with_copies
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.trees import path_of
from convs2s_jax.nn.types import Tree

_NAMES = (
    (r"embedding/table", r"embed_tokens.weight"),
    (r"embedding/positions", r"embed_positions.weight"),
    (r"map_in/(.+)", r"fc1.\1"),
    (r"map_out/(.+)", r"fc2.\1"),
    (r"output", r"fc3.bias"),
    (r"output/(.+)", r"fc3.\1"),
    (r"blocks/(\d+)/conv/(.+)", r"convolutions.\1.\2"),
    (r"blocks/(\d+)/projection/(.+)", r"projections.\1.\2"),
    (r"blocks/(\d+)/attention/query/(.+)", r"attention.\1.in_projection.\2"),
    (r"blocks/(\d+)/attention/context/(.+)", r"attention.\1.out_projection.\2"),
)
_LEAVES = {"w/v": "weight_v", "w/g": "weight_g", "w": "weight", "b": "bias"}
_ORDER = ("embed_tokens", "embed_positions", "fc1", "projections", "convolutions", "attention", "fc2", "fc3")
_VERSION, _TIED = "decoder.version", "decoder.fc3.weight"
_OLD_LENGTH = re.compile(r"decoder\.convolutions\.\d+\.weight_g")


def fairseq_name(path: str) -> str:
    """fairseq's name of one of our parameters: 'decoder/blocks/0/conv/w/v' -> 'decoder.convolutions.0.weight_v'."""
    side, _, rest = path.partition("/")
    for pattern, name in _NAMES:
        match = re.fullmatch(pattern, rest)
        if match:
            *heads, leaf = match.expand(name).rsplit(".", 1)
            return ".".join([side, *heads, _LEAVES.get(leaf, leaf)])
    raise ValueError(f"{path}: fairseq has no such parameter")


def params_from_state_dict(cfg: ModelConfig, tensors: Mapping[str, Any]) -> Params:
    """Convert fairseq's state dict to parameters, with kernels split into direction and length.

    Args:
      cfg: the model (`config_from_args`).
      tensors: arrays by fairseq's names. If `decoder.version` is missing or below 2, the norm of decoder convolutions
        is taken over (C, 2D) for each tap. Their g is [K, 1, 1], which `weight_norm.merge` supports. Kernels from
        which weight normalisation was removed are stored under `weight` and are split.

    Raises:
      UserError: names the tensors that are missing, surplus or misshapen.
    """
    old = {name for name in tensors if _OLD_LENGTH.fullmatch(name)} if _version(tensors) < 2 else set()
    tensors = _with_lengths(cfg, tensors)

    def place(path: str, shape: tuple[int, ...]) -> Place:
        name = fairseq_name(path)
        if name in old and np.ndim(tensors[name]):
            return Place(name, (len(tensors[name]), 1, 1), np.asarray, np.asarray)
        if _transposed(name):
            return Place(name, shape[::-1], np.transpose, np.transpose)
        return Place(name, shape, np.asarray, np.asarray)

    return fitted(cfg, tensors, place, output=_TIED, spare={_VERSION})


def state_dict(params: Tree) -> dict[str, np.ndarray]:
    """Convert parameters to arrays by fairseq's names, in the order of its `model.parameters()`.

    This is the inverse of `params_from_state_dict`. It also converts gradients and optimiser state.
    """
    result = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = fairseq_name(path_of(path))
        result[name] = np.ascontiguousarray(np.asarray(leaf).T if _transposed(name) else np.asarray(leaf))
    return {name: result[name] for name in sorted(result, key=_place)}


def whole_state_dict(cfg: ModelConfig, params: Params) -> dict[str, np.ndarray]:
    """fairseq's `model.state_dict()`: the parameters, the decoder's version (2), and the table of a tied output."""
    tensors = with_copies(cfg, state_dict(params), _TIED) | {_VERSION: np.array([2], np.float32)}
    return {name: tensors[name] for name in sorted(tensors, key=_place)}


def as_version_2(params: Params) -> Params:
    """Convert kernels to the form of version 2, with one length for each output channel.

    Decoder convolutions of version-1 checkpoints are merged and split again. Other kernels are unchanged, bit for bit.
    """

    def renew(normed: Tree) -> Tree:
        if not isinstance(normed, weight_norm.Normed) or normed.g.shape[-1] == normed.v.shape[-1]:
            return normed
        return weight_norm.normed(weight_norm.kernel(normed))

    return jax.tree.map(renew, params, is_leaf=lambda x: isinstance(x, weight_norm.Normed))


def check_directions(params: Tree) -> None:
    """Refuse directions whose norm is zero or infinite, since weight normalisation divides by it.

    Raises:
      UserError: names the first of them as fairseq does.
    """
    found = jax.tree_util.tree_leaves_with_path(params, is_leaf=lambda x: isinstance(x, weight_norm.Normed))
    for path, leaf in found:
        if not isinstance(leaf, weight_norm.Normed):
            continue
        axes = tuple(axis for axis, size in enumerate(leaf.g.shape) if size == 1)
        with np.errstate(over="ignore", under="ignore"):
            norm = np.sqrt(np.sum(np.square(np.asarray(leaf.v)), axis=axes))
        odd = np.flatnonzero(~(np.isfinite(norm) & (norm > 0)))
        if len(odd):
            raise UserError(
                f"{fairseq_name(path_of(path))}_v has a norm of {norm.flat[odd[0]]:g} in channel {odd[0]} (channels "
                f"affected: {len(odd)}); weight normalisation divides by it, so the model computes NaN in fairseq "
                "too; use another checkpoint"
            )


def momentum_obstacle(tensors: Mapping[str, Any]) -> str:
    """The reason that momentum cannot be imported, if kernels are not split as in version 2; else ""."""
    current = _version(tensors) >= 2 and "encoder.fc1.weight_v" in tensors
    return "" if current else "its weight normalisation has a different form from the one trained here"


def _with_lengths(cfg: ModelConfig, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Split kernels from which weight normalisation was removed: v = w, g = ||w|| for each output channel."""
    result = {}
    for name, value in tensors.items():
        module, _, leaf = name.rpartition(".")
        bare = leaf == "weight" and "embed_" not in module and not (cfg.decoder.tied_output and name == _TIED)
        if bare and np.ndim(value) in (2, 3) and not {f"{module}.weight_v", f"{module}.weight_g"} & set(tensors):
            w = np.asarray(value)
            axes = (1,) if w.ndim == 2 else (0, 1)
            zeros = np.all(w == 0, axis=axes, keepdims=True)  # no direction: any direction of length 0
            result[f"{module}.weight_v"] = np.where(zeros, np.ones_like(w), w)
            result[f"{module}.weight_g"] = np.sqrt(np.sum(np.square(w), axis=axes, keepdims=True))
        else:
            result[name] = value
    return result


def _version(tensors: Mapping[str, Any]) -> float:
    return float(np.max(np.asarray(tensors.get(_VERSION, 1.0)), initial=0.0))


def _place(name: str) -> tuple[Any, ...]:
    """Sort key for fairseq's order of tensors: by module, layer, and within a layer bias, weight_g, weight_v."""
    side, module, *rest = name.split(".")
    order = _ORDER.index(module) if module in _ORDER else -1
    layer = int(rest[0]) if rest and rest[0].isdecimal() else 0
    return side == "decoder", order, layer, name != _TIED, name


def _transposed(name: str) -> bool:
    """Whether fairseq stores this tensor as [D, C]: the kernels of linear maps."""
    return bool(re.search(r"\.weight(_v|_g)?$", name)) and not re.search(r"convolutions|embed_", name)
