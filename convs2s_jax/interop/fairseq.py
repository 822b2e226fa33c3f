"""The parameters of fairseq's `fconv` models under our names, and back.

Both sides hold the same numbers; fairseq stores a linear map as [D, C] where we have [C, D].
"""

import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from convs2s_jax.core.config import build, literal
from convs2s_jax.core.errors import UserError
from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.encoder_decoder import ModelConfig, Params
from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.types import Array

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


def fairseq_name(path: str) -> str:
    """Fairseq's name of one of our leaves: 'decoder/blocks/0/conv/w/v' -> 'decoder.convolutions.0.weight_v'."""
    side, _, rest = path.partition("/")
    for pattern, name in _NAMES:
        match = re.fullmatch(pattern, rest)
        if match:
            *heads, leaf = match.expand(name).rsplit(".", 1)
            return ".".join([side, *heads, _LEAVES.get(leaf, leaf)])
    raise ValueError(f"{path}: fairseq has no such parameter")


def config_from_args(args: Mapping[str, Any]) -> ModelConfig:
    """The model that fairseq's own arguments describe (`--arch fconv*`).

    Layer lists are read as literals, never evaluated.

    Raises:
      UserError: encoder and decoder of different embedding size, or a layer list that is not one.
    """
    encoder_dim, decoder_dim = args["encoder_embed_dim"], args["decoder_embed_dim"]
    if encoder_dim != decoder_dim:
        raise UserError(
            f"encoder_embed_dim is {encoder_dim} and decoder_embed_dim {decoder_dim}: attention needs equal sizes"
        )
    attention = literal(str(args["decoder_attention"]))
    layers = literal(str(args["decoder_layers"]))
    attends = attention if isinstance(attention, list | tuple) else [attention] * len(layers)
    values = {
        "embedding_dim": encoder_dim,
        "dropout": args["dropout"],
        "encoder": {
            "layers": literal(str(args["encoder_layers"])),
            "max_positions": args["max_source_positions"],
        },
        "decoder": {
            "layers": layers,
            "attention_layers": None if all(attends) else [i + 1 for i, yes in enumerate(attends) if yes],
            "out_dim": args["decoder_out_embed_dim"],
            "tied_output": bool(args["share_input_output_embed"]),
            "max_positions": args["max_target_positions"],
        },
    }
    return build(ModelConfig, values, "model")


def params_from_state_dict(cfg: ModelConfig, tensors: Mapping[str, Any]) -> Params:
    """Parameters, weight norm split, from fairseq's state dict.

    Args:
      cfg: the model (`config_from_args`).
      tensors: arrays by fairseq's names. `decoder.version` below 2, or none, marks decoder convolutions whose norm is
        taken over (C, 2D) for each tap: their g is [K, 1, 1], which `weight_norm.merge` reads as it is.

    Raises:
      UserError: names the missing, surplus and misshapen tensors.
    """
    encoder_rows = len(tensors["encoder.embed_tokens.weight"])
    decoder_rows = len(tensors["decoder.embed_tokens.weight"])
    abstract = jax.eval_shape(
        lambda key: weight_norm.split(
            encoder_decoder.init(key, cfg, source_vocabulary=encoder_rows, target_vocabulary=decoder_rows)
        ),
        jax.random.key(0),
    )
    old = float(np.max(np.asarray(tensors.get("decoder.version", 1.0)))) < 2
    used, problems = {"decoder.version"} | ({"decoder.fc3.weight"} if cfg.decoder.tied_output else set()), []

    def read(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> Array:
        name = fairseq_name(jax.tree_util.keystr(path, simple=True, separator="/"))
        used.add(name)
        if name not in tensors:
            problems.append(f"{name} is missing")
            return jnp.zeros(leaf.shape)
        value = np.asarray(tensors[name])
        value = value.T if _transposed(name) else value
        expected = leaf.shape
        if old and re.fullmatch(r"decoder\.convolutions\.\d+\.weight_g", name):
            expected = (value.shape[0], 1, 1)
        if value.shape != expected:
            problems.append(f"{name} is {value.shape}, the model has {expected}")
        return jnp.asarray(value)

    params = jax.tree_util.tree_map_with_path(read, abstract)
    problems += [f"{name} has no place in the model" for name in sorted(set(tensors) - used)]
    if problems:
        raise UserError("the checkpoint does not fit its configuration: " + "; ".join(problems))
    return params


def state_dict(params: Params) -> dict[str, np.ndarray]:
    """Arrays by fairseq's names; the inverse of `params_from_state_dict` (gradients and optimiser state map alike)."""
    result = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = fairseq_name(jax.tree_util.keystr(path, simple=True, separator="/"))
        result[name] = np.asarray(leaf).T if _transposed(name) else np.asarray(leaf)
    return result


def _transposed(name: str) -> bool:
    """Whether fairseq stores this tensor as [D, C]: the kernels of linear maps."""
    return bool(re.search(r"\.weight(_v|_g)?$", name)) and not re.search(r"convolutions|embed_", name)
