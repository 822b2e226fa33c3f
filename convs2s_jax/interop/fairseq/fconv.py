"""fairseq's `fconv` models: their arguments as our ModelConfig, and the names of their parameters.

The values of parameters are the same. fairseq stores a linear map as [D, C], we store it as [C, D].
"""

import re
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from convs2s_jax.core.config import build
from convs2s_jax.core.errors import UserError, shown
from convs2s_jax.interop.fairseq import values
from convs2s_jax.interop.fairseq.values import Rule, checked
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.convolutions import DenseConfig
from convs2s_jax.models.convs2s import ConvDecoderConfig, ConvEncoderConfig, ConvLayer
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.trees import path_of
from convs2s_jax.nn.types import Tree

_BASE: dict[str, Any] = {
    "dropout": 0.1,
    "encoder_embed_dim": 512,
    "encoder_layers": "[(512, 3)] * 20",
    "decoder_embed_dim": 512,
    "decoder_layers": "[(512, 3)] * 20",
    "decoder_out_embed_dim": 256,
    "decoder_attention": "True",
    "share_input_output_embed": False,
    "max_source_positions": 1024,
    "max_target_positions": 1024,
}


def _wide(layers: str) -> dict[str, Any]:
    sizes = {"encoder_embed_dim": 768, "decoder_embed_dim": 768, "decoder_out_embed_dim": 512}
    return _BASE | sizes | {"encoder_layers": layers, "decoder_layers": layers}


PRESETS: dict[str, dict[str, Any]] = {
    "fconv": _BASE,
    "fconv_iwslt_de_en": _BASE
    | {"encoder_embed_dim": 256, "encoder_layers": "[(256, 3)] * 4"}
    | {"decoder_embed_dim": 256, "decoder_layers": "[(256, 3)] * 3"},
    "fconv_wmt_en_ro": _BASE | {"decoder_out_embed_dim": 512},
    "fconv_wmt_en_de": _wide("[(512, 3)] * 9 + [(1024, 3)] * 4 + [(2048, 1)] * 2"),
    "fconv_wmt_en_fr": _wide("[(512, 3)] * 6 + [(768, 3)] * 4 + [(1024, 3)] * 3 + [(2048, 1)] + [(4096, 1)]"),
}
"""fairseq's defaults for missing arguments, by `--arch` (fairseq/models/fconv.py)."""

_MOST_LAYERS = 1000
SIZE, POSITIONS, RATE = values.whole(1, 2**20), values.whole(1, 2**24), values.number(0, 1)
_WIDTH, _SKIP = values.whole(1, 2**16), values.whole(0, _MOST_LAYERS)


def _layers(name: str, value: Any) -> list[tuple[int, ...]]:
    """A list of layers, or a string that spells one. The string is parsed as a literal, never evaluated."""
    found = values.spelled(value)
    if not isinstance(found, list | tuple) or not 1 <= len(found) <= _MOST_LAYERS:
        raise UserError(
            f"{name} is {shown(value)}; expected a list of 1 to {_MOST_LAYERS} layers, spelled with numbers, + and *, "
            "as in [(512, 3)] * 20"
        )
    for i, layer in enumerate(found):
        if not isinstance(layer, list | tuple) or len(layer) not in (2, 3):
            raise UserError(
                f"{name}[{i}] is {shown(layer)}; expected (channels, kernel width), with a third number if the "
                "residual connection is not from the previous layer"
            )
        for rule, part, item in zip((SIZE, _WIDTH, _SKIP), ("channels", "width", "residual"), layer, strict=False):
            rule(f"the {part} of {name}[{i}]", item)
    return [tuple(layer) for layer in found]


RULES: dict[str, Rule] = {
    "arch": values.text,
    "dropout": RATE,
    "encoder_embed_dim": SIZE,
    "encoder_layers": _layers,
    "decoder_embed_dim": SIZE,
    "decoder_layers": _layers,
    "decoder_out_embed_dim": SIZE,
    "decoder_attention": lambda _name, value: values.spelled(value),
    "share_input_output_embed": values.flag,
    "max_source_positions": POSITIONS,
    "max_target_positions": POSITIONS,
}
"""The arguments of `fconv` that are used."""


def config_from_args(args: Mapping[str, Any]) -> ModelConfig:
    """The model described by fairseq's arguments (`--arch fconv*`).

    Layer lists are parsed as literals, never evaluated. Missing arguments default to the preset `arch`, or to `fconv`.

    Raises:
      UserError: encoder and decoder have different embedding sizes, or an argument violates its rule.
    """
    args = _with_defaults(args)
    encoder_layers, layers = (_layers(f"{side}_layers", args[f"{side}_layers"]) for side in ("encoder", "decoder"))
    encoder_dim, decoder_dim = args["encoder_embed_dim"], args["decoder_embed_dim"]
    if encoder_dim != decoder_dim:
        raise UserError(
            f"encoder_embed_dim is {encoder_dim} and decoder_embed_dim is {decoder_dim}; attention needs equal sizes"
        )
    model = {
        "embedding_dim": encoder_dim,
        "dropout": args["dropout"],
        "encoder": {
            "kind": "conv",
            "layers": encoder_layers,
            "max_positions": args["max_source_positions"],
        },
        "decoder": {
            "kind": "conv",
            "layers": layers,
            "attention_layers": _attention_layers(values.spelled(args["decoder_attention"]), len(layers)),
            "out_dim": args["decoder_out_embed_dim"],
            "tied_output": args["share_input_output_embed"],
            "max_positions": args["max_target_positions"],
        },
    }
    return build(ModelConfig, model, "model")


def args_from_config(cfg: ModelConfig) -> dict[str, Any]:
    """fairseq's arguments for a model; the inverse of `config_from_args`.

    Raises:
      UserError: fairseq's `fconv` cannot represent the model.
    """
    encoder, decoder = cfg.encoder, cfg.decoder
    if not isinstance(encoder, ConvEncoderConfig) or not isinstance(decoder, ConvDecoderConfig):
        side, kind = ("decoder", decoder.kind) if isinstance(encoder, ConvEncoderConfig) else ("encoder", encoder.kind)
        raise UserError(
            f"model.{side}.kind is '{kind}', but only models of kind 'conv' can be exported to fairseq's fconv"
        )
    if cfg.share_embeddings:
        raise UserError(
            "model.share_embeddings is True, but fairseq's fconv has a separate table for each side; train without it"
        )
    for side, one in (("encoder", encoder), ("decoder", decoder)):
        if not isinstance(one.convolution, DenseConfig):
            raise UserError(
                f"model.{side}.convolution.kind is '{one.convolution.kind}', but fairseq's fconv supports dense "
                "convolutions only"
            )
        if not one.positions:
            raise UserError(
                f"model.{side}.positions is False, but fairseq's fconv always adds positions; train with positions"
            )
    attends = [decoder.attends(i) for i in range(len(decoder.layers))]
    return {
        "arch": "fconv",
        "dropout": cfg.dropout,
        "encoder_embed_dim": cfg.embedding_dim,
        "encoder_embed_path": None,
        "encoder_layers": _written(encoder.layers),
        "decoder_embed_dim": cfg.embedding_dim,
        "decoder_embed_path": None,
        "decoder_layers": _written(decoder.layers),
        "decoder_out_embed_dim": decoder.out_dim,
        "decoder_attention": "True" if all(attends) else str(attends),
        "share_input_output_embed": decoder.tied_output,
        "max_source_positions": encoder.max_positions,
        "max_target_positions": decoder.max_positions,
    }


def _with_defaults(args: Mapping[str, Any]) -> dict[str, Any]:
    args = checked(args, RULES)
    return PRESETS.get(args.get("arch", ""), _BASE) | {name: args[name] for name in _BASE if name in args}


def _attention_layers(attention: Any, count: int) -> list[int] | None:
    """Numbers of the layers that attend, from 1; None for all of them."""
    if isinstance(attention, bool):
        attention = [attention] * count
    right = isinstance(attention, list | tuple) and all(isinstance(yes, int) and yes in (0, 1) for yes in attention)
    if not right or len(attention) != count:
        raise UserError(
            f"decoder_attention is {shown(attention)}; expected True, False, or a list of them, one for each of the "
            f"{count} decoder layers"
        )
    return None if all(attention) else [i + 1 for i, yes in enumerate(attention) if yes]


def _written(layers: tuple[ConvLayer, ...]) -> str:
    """A layer list in fairseq's syntax. The third number of a layer is its residual."""
    return str([(x.channels, x.width) if x.skip == 1 else (x.channels, x.width, x.skip) for x in layers])


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
_VERSION, OUTPUT = "decoder.version", "decoder.fc3.weight"
_OLD_LENGTH = re.compile(r"decoder\.convolutions\.\d+\.weight_g")
UNREAD = re.compile(r"decoder\.version")
"""Tensors that are no parameters."""


def fairseq_name(path: str) -> str:
    """fairseq's name of one of our parameters: 'decoder/blocks/0/conv/w/v' -> 'decoder.convolutions.0.weight_v'."""
    side, _, rest = path.partition("/")
    for pattern, name in _NAMES:
        match = re.fullmatch(pattern, rest)
        if match:
            *heads, leaf = match.expand(name).rsplit(".", 1)
            return ".".join([side, *heads, _LEAVES.get(leaf, leaf)])
    raise ValueError(f"{path}: fairseq has no such parameter")


def place(path: str, shape: tuple[int, ...], tensors: Mapping[str, Any]) -> tuple[str, tuple[int, ...], bool]:
    """fairseq's name and shape of a parameter, and whether its axes are reversed: those of linear maps.

    If `decoder.version` is missing or below 2, the norm of decoder convolutions is taken over (C, 2D) for each tap.
    Their g is [K, 1, 1], which `weight_norm.merge` supports.
    """
    name = fairseq_name(path)
    if _version(tensors) < 2 and _OLD_LENGTH.fullmatch(name) and np.shape(tensors.get(name, 0))[-1:] == (1,):
        return name, (len(tensors[name]), 1, 1), False
    reverse = bool(re.search(r"\.weight(_v|_g)?$", name)) and not re.search(r"convolutions|embed_", name)
    return name, shape[::-1] if reverse else shape, reverse


def order(name: str) -> tuple[Any, ...]:
    """Sort key for fairseq's order of tensors: by module, layer, and within a layer bias, weight_g, weight_v."""
    side, module, *rest = name.split(".")
    index = _ORDER.index(module) if module in _ORDER else -1
    layer = int(rest[0]) if rest and rest[0].isdecimal() else 0
    return side == "decoder", index, layer, name != OUTPUT, name


def unused(_tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What fairseq stores beside the parameters: the decoder's version."""
    return {_VERSION: np.array([2], np.float32)}


def later(cfg: ModelConfig, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Split kernels from which weight normalisation was removed: v = w, g = ||w|| for each output channel."""
    result = {}
    for name, value in tensors.items():
        module, _, leaf = name.rpartition(".")
        bare = leaf == "weight" and "embed_" not in module and not (cfg.decoder.tied_output and name == OUTPUT)
        if bare and np.ndim(value) in (2, 3) and not {f"{module}.weight_v", f"{module}.weight_g"} & set(tensors):
            w = np.asarray(value)
            axes = (1,) if w.ndim == 2 else (0, 1)
            zeros = np.all(w == 0, axis=axes, keepdims=True)  # no direction: any direction of length 0
            result[f"{module}.weight_v"] = np.where(zeros, np.ones_like(w), w)
            result[f"{module}.weight_g"] = np.sqrt(np.sum(np.square(w), axis=axes, keepdims=True))
        else:
            result[name] = value
    return result


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


def _version(tensors: Mapping[str, Any]) -> float:
    return float(np.max(np.asarray(tensors.get(_VERSION, 1.0)), initial=0.0))
