"""fairseq's `fconv` models: their arguments as our ModelConfig, and the names of their parameters.

The values of parameters are the same. fairseq stores a linear map as [D, C], we store it as [C, D].
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from convs2s_jax.core.config import build, literal
from convs2s_jax.core.errors import UserError, shown
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.convolutions import DenseConfig
from convs2s_jax.models.encoder_decoder import Params
from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.types import Tree

KIND = "conv"
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


def config_from_args(args: Mapping[str, Any]) -> ModelConfig:
    """The model described by fairseq's arguments (`--arch fconv*`).

    Layer lists are parsed as literals, never evaluated. Missing arguments default to the preset `arch`, or to `fconv`.

    Raises:
      UserError: encoder and decoder have different embedding sizes, or the model is not supported.
    """
    given = {name: args[name] for name in _BASE if args.get(name) is not None}
    args = PRESETS.get(args.get("arch", ""), _BASE) | given
    encoder_dim, decoder_dim = args["encoder_embed_dim"], args["decoder_embed_dim"]
    if encoder_dim != decoder_dim:
        raise UserError(
            f"encoder_embed_dim is {shown(encoder_dim)} and decoder_embed_dim is {shown(decoder_dim)}; attention needs "
            "equal sizes"
        )
    layers = literal(str(args["decoder_layers"]))
    model = {
        "embedding_dim": encoder_dim,
        "dropout": args["dropout"],
        "encoder": {
            "kind": "conv",
            "layers": literal(str(args["encoder_layers"])),
            "max_positions": args["max_source_positions"],
        },
        "decoder": {
            "kind": "conv",
            "layers": layers,
            "attention_layers": _attention_layers(literal(str(args["decoder_attention"])), len(layers)),
            "out_dim": args["decoder_out_embed_dim"],
            "tied_output": args["share_input_output_embed"],
            "max_positions": args["max_target_positions"],
        },
    }
    return build(ModelConfig, model, "model")


def args_from_config(cfg: ModelConfig) -> dict[str, Any]:
    """fairseq's arguments for a model whose sides are of kind `conv`; the inverse of `config_from_args`.

    Raises:
      UserError: fairseq's `fconv` cannot represent the model.
    """
    encoder: Any = cfg.encoder
    decoder: Any = cfg.decoder
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


def _attention_layers(attention: Any, count: int) -> list[int] | None:
    """Numbers of the layers that attend, from 1; None for all of them. A single value stands for all `count` layers."""
    flags = list(attention) if isinstance(attention, list | tuple) else [attention] * count
    if len(flags) != count or any(flag not in (0, 1) for flag in flags):
        raise UserError(
            f"decoder_attention is {shown(attention)}; expected True, False, or a list of them, one for each of the "
            f"{count} decoder layers"
        )
    return None if all(flags) else [i for i, flag in enumerate(flags, 1) if flag]


def _written(layers: Sequence[Any]) -> str:
    """A layer list in fairseq's syntax. The third number of a layer is its residual."""
    return str([(x.channels, x.width) if x.skip == 1 else (x.channels, x.width, x.skip) for x in layers])


_NAMES = {
    r"(\w+)/embedding/table": r"\1.embed_tokens.weight",
    r"(\w+)/embedding/positions": r"\1.embed_positions.weight",
    r"(\w+)/map_in/(.+)": r"\1.fc1.\2",
    r"(\w+)/map_out/(.+)": r"\1.fc2.\2",
    r"decoder/output": r"decoder.fc3.b",
    r"decoder/output/(.+)": r"decoder.fc3.\1",
    r"(\w+)/blocks/(\d+)/conv/(.+)": r"\1.convolutions.\2.\3",
    r"(\w+)/blocks/(\d+)/projection/(.+)": r"\1.projections.\2.\3",
    r"decoder/blocks/(\d+)/attention/query/(.+)": r"decoder.attention.\1.in_projection.\2",
    r"decoder/blocks/(\d+)/attention/context/(.+)": r"decoder.attention.\1.out_projection.\2",
}
"""Our paths of parameters, and fairseq's names but for their ends, which are in `_LEAVES`."""
_LEAVES = {"w/v": "weight_v", "w/g": "weight_g", "w": "weight", "b": "bias", "scale": "weight"}
_ORDER = ("embed_tokens", "embed_positions", "fc1", "projections", "convolutions", "attention", "fc2", "fc3")
_VERSION, OUTPUT = "decoder.version", "decoder.fc3.weight"
_OLD_LENGTH = re.compile(r"decoder\.convolutions\.\d+\.weight_g")
UNREAD = re.compile(r"decoder\.version")
"""Tensors that are no parameters."""


def renamed(path: str, names: Mapping[str, str]) -> str:
    """fairseq's name of the parameter at our path, by a table like `_NAMES`."""
    for pattern, name in names.items():
        match = re.fullmatch(pattern, path)
        if match:
            module, _, leaf = match.expand(name).rpartition(".")
            return f"{module}.{_LEAVES.get(leaf, leaf)}"
    raise ValueError(f"{path}: fairseq has no such parameter")


def place(path: str, shape: tuple[int, ...], tensors: Mapping[str, Any]) -> tuple[str, tuple[int, ...], bool]:
    """fairseq's name and shape of a parameter, and whether its axes are reversed: those of linear maps.

    If `decoder.version` is missing or below 2, the norm of decoder convolutions is taken over (C, 2D) for each tap.
    Their g is [K, 1, 1], which `weight_norm.merge` supports.
    """
    name = renamed(path, _NAMES)
    if version(tensors) < 2 and _OLD_LENGTH.fullmatch(name) and np.shape(tensors.get(name, 0))[-1:] == (1,):
        return name, (len(tensors[name]), 1, 1), False
    reverse = bool(re.search(r"\.weight(_v|_g)?$", name)) and not re.search(r"convolutions|embed_", name)
    return name, shape[::-1] if reverse else shape, reverse


def later(tensors: Mapping[str, Any]) -> Mapping[str, Any]:
    """The tensors themselves: names and shapes are the same in all versions."""
    return tensors


def order(name: str) -> tuple[Any, ...]:
    """Sort key for fairseq's order of tensors: by module, layer, and within a layer bias, weight_g, weight_v."""
    side, module, *rest = name.split(".")
    index = _ORDER.index(module) if module in _ORDER else -1
    layer = int(rest[0]) if rest and rest[0].isdecimal() else 0
    return side == "decoder", index, layer, name != OUTPUT, name


def unused(_tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What fairseq stores beside the parameters: the decoder's version."""
    return {_VERSION: np.array([2], np.float32)}


def as_version_2(params: Params) -> Params:
    """Convert kernels to the form of version 2, with one length for each output channel.

    Decoder convolutions of version-1 checkpoints are merged and split again. Other kernels are unchanged, bit for bit.
    """

    def renew(normed: Tree) -> Tree:
        if not isinstance(normed, weight_norm.Normed) or normed.g.shape[-1] == normed.v.shape[-1]:
            return normed
        return weight_norm.normed(weight_norm.kernel(normed))

    return jax.tree.map(renew, params, is_leaf=lambda x: isinstance(x, weight_norm.Normed))


def version(tensors: Mapping[str, Any]) -> float:
    """The version of a state dict, which says over which axes kernels are normalised; 1 if it has none."""
    return float(np.max(np.asarray(tensors.get(_VERSION, 1.0)), initial=0.0))
