"""fairseq's `lightconv` models: their arguments as our ModelConfig, and the names of their parameters."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from convs2s_jax.core.config import build, literal
from convs2s_jax.core.errors import UserError, shown
from convs2s_jax.interop.fairseq.fconv import renamed
from convs2s_jax.models.config import ModelConfig

KIND = "light"


def _both(**values: Any) -> dict[str, Any]:
    """The same values for encoder and decoder."""
    return {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in values.items()}


_BASE: dict[str, Any] = {
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "relu_dropout": 0.0,
    "input_dropout": 0.1,
    "weight_softmax": True,
    "share_decoder_input_output_embed": False,
    "share_all_embeddings": False,
    "max_source_positions": 1024,
    "max_target_positions": 1024,
    "encoder_embed_dim": 512,
    "encoder_ffn_embed_dim": 2048,
    "encoder_layers": 7,
    "encoder_kernel_size_list": [3, 7, 15, 31, 31, 31, 31],
    "decoder_layers": 6,
    "decoder_kernel_size_list": [3, 7, 15, 31, 31, 31],
    "no_token_positional_embeddings": False,
    "adaptive_softmax_cutoff": None,
    **_both(attention_heads=8, conv_type="dynamic", glu=True, normalize_before=False, learned_pos=False),
}
_ELSE = {
    "decoder_embed_dim": "encoder_embed_dim",
    "decoder_ffn_embed_dim": "encoder_ffn_embed_dim",
    "encoder_conv_dim": "encoder_embed_dim",
    "decoder_conv_dim": "decoder_embed_dim",
    "decoder_output_dim": "decoder_embed_dim",
    "weight_dropout": "attention_dropout",
}
"""Arguments that default to another one if neither the checkpoint nor its preset sets them, in this order."""
_SMALL = _both(embed_dim=512, ffn_embed_dim=1024, attention_heads=4, glu=False)
_BIG = _both(embed_dim=1024, ffn_embed_dim=4096, attention_heads=16) | {"dropout": 0.3, "attention_dropout": 0.1}

PRESETS: dict[str, dict[str, Any]] = {
    "lightconv": _BASE,
    "lightconv_iwslt_de_en": _BASE | _SMALL | {"attention_dropout": 0.1, "weight_dropout": 0.1, "input_dropout": 0.0},
    "lightconv_wmt_en_de": _BASE,
    "lightconv_wmt_en_de_big": _BASE | _BIG,
    "lightconv_wmt_en_fr_big": _BASE | _BIG | {"dropout": 0.1},
    "lightconv_wmt_zh_en_big": _BASE | _BIG | {"dropout": 0.2, "attention_dropout": 0.2, "weight_dropout": 0.2},
}
"""fairseq's defaults for missing arguments, by `--arch` (fairseq/models/lightconv.py)."""

_OF_BOTH = ("input_dropout", "relu_dropout", "weight_dropout")
"""Rates that fairseq has once for both sides."""
_OF_SIDE = {
    "conv_dim": "conv_dim",
    "ffn_dim": "ffn_embed_dim",
    "heads": "attention_heads",
    "convolution": "conv_type",
    "glu": "glu",
    "norm_before": "normalize_before",
}
"""Our names of values of one side, and fairseq's, which follow "encoder_" or "decoder_"."""
_POSITIONS = {"encoder": "max_source_positions", "decoder": "max_target_positions"}
_MOST_LAYERS = 1000
_RESERVED = 2
"""Unused rows of a position table. fairseq does not count them, max_positions does."""


def config_from_args(args: Mapping[str, Any]) -> ModelConfig:
    """The model described by fairseq's arguments (`--arch lightconv*`).

    Missing arguments default to the preset `arch`, or to `lightconv`.

    Raises:
      UserError: a model that is not supported.
    """
    given = {name: args[name] for name in (*_BASE, *_ELSE) if args.get(name) is not None}
    args = PRESETS.get(args.get("arch", ""), _BASE) | given
    for name, other in _ELSE.items():
        args.setdefault(name, args[other])
    dim = args["encoder_embed_dim"]
    for name, needed in (
        ("decoder_embed_dim", dim),
        ("decoder_output_dim", dim),
        ("weight_softmax", True),
        ("no_token_positional_embeddings", False),
        ("adaptive_softmax_cutoff", None),
    ):
        if args[name] != needed:
            raise UserError(f"{name} is {shown(args[name])}, but light models here have {needed}")
    model = {
        "embedding_dim": dim,
        "dropout": args["dropout"],
        "share_embeddings": args["share_all_embeddings"],
        "encoder": _side_values(args, "encoder"),
        "decoder": _side_values(args, "decoder")
        | {
            "tied_output": args["share_all_embeddings"] or args["share_decoder_input_output_embed"],
            "attention_dropout": args["attention_dropout"],
        },
    }
    return build(ModelConfig, model, "model")


def _side_values(args: Mapping[str, Any], side: str) -> dict[str, Any]:
    """Values of an encoder's or a decoder's config."""
    widths, count = literal(str(args[f"{side}_kernel_size_list"])), args[f"{side}_layers"]
    if len(widths) == 1 and 1 <= count <= _MOST_LAYERS:
        widths = list(widths) * count
    if len(widths) != count:
        raise UserError(
            f"{side}_kernel_size_list is {shown(widths)}; expected one width for each of the {shown(count)} "
            f"{side}_layers"
        )
    return {
        "kind": "light",
        "layers": list(widths),
        "positions": "learned" if args[f"{side}_learned_pos"] else "sinusoidal",
        "max_positions": args[_POSITIONS[side]] + _RESERVED,
        **{name: args[name] for name in _OF_BOTH},
        **{ours: args[f"{side}_{theirs}"] for ours, theirs in _OF_SIDE.items()},
    }


def args_from_config(cfg: ModelConfig) -> dict[str, Any]:
    """fairseq's arguments for a model whose sides are of kind `light`; the inverse of `config_from_args`.

    Raises:
      UserError: fairseq's `lightconv` cannot represent the model.
    """
    encoder: Any = cfg.encoder
    decoder: Any = cfg.decoder
    for name in _OF_BOTH:
        if getattr(encoder, name) != getattr(decoder, name):
            raise UserError(
                f"model.encoder.{name} is {getattr(encoder, name)} and model.decoder.{name} is "
                f"{getattr(decoder, name)}, but fairseq's lightconv uses one rate for both sides"
            )
    return {
        "arch": "lightconv",
        "dropout": cfg.dropout,
        "attention_dropout": decoder.attention_dropout,
        **{name: getattr(encoder, name) for name in _OF_BOTH},
        "weight_softmax": True,
        "share_all_embeddings": cfg.share_embeddings,
        "share_decoder_input_output_embed": decoder.tied_output,
        "adaptive_softmax_cutoff": None,
        "adaptive_softmax_dropout": 0,
        "no_token_positional_embeddings": False,
        "decoder_input_dim": cfg.embedding_dim,
        "decoder_output_dim": cfg.embedding_dim,
        **_both(embed_path=None, embed_dim=cfg.embedding_dim),
        **_side_args(encoder, "encoder"),
        **_side_args(decoder, "decoder"),
    }


def _side_args(cfg: Any, side: str) -> dict[str, Any]:
    """The inverse of `_side_values`."""
    return {
        _POSITIONS[side]: cfg.max_positions - _RESERVED,
        f"{side}_layers": len(cfg.layers),
        f"{side}_kernel_size_list": list(cfg.layers),
        f"{side}_learned_pos": cfg.positions == "learned",
        **{f"{side}_{theirs}": getattr(cfg, ours) for ours, theirs in _OF_SIDE.items()},
    }


_NAMES = {
    r"(\w+)/embedding/table": r"\1.embed_tokens.weight",
    r"(\w+)/embedding/positions": r"\1.embed_positions.weight",
    r"(\w+)/norm/(\w+)": r"\1.layer_norm.\2",
    r"decoder/output_kernel": r"decoder.output_projection.w",
    r"(\w+)/blocks/(\d+)/convolution/map_in/(\w)": r"\1.layers.\2.linear1.\3",
    r"(\w+)/blocks/(\d+)/convolution/map_out/(\w)": r"\1.layers.\2.linear2.\3",
    r"(\w+)/blocks/(\d+)/convolution/taps/scores": r"\1.layers.\2.conv.weight",
    r"(\w+)/blocks/(\d+)/convolution/taps/maker": r"\1.layers.\2.conv.weight_linear.weight",
    r"encoder/blocks/(\d+)/convolution/norm/(\w+)": r"encoder.layers.\1.layer_norm1.\2",
    r"decoder/blocks/(\d+)/convolution/norm/(\w+)": r"decoder.layers.\1.conv_layer_norm.\2",
    r"(\w+)/blocks/(\d+)/feed_forward/map_in/(\w)": r"\1.layers.\2.fc1.\3",
    r"(\w+)/blocks/(\d+)/feed_forward/map_out/(\w)": r"\1.layers.\2.fc2.\3",
    r"encoder/blocks/(\d+)/feed_forward/norm/(\w+)": r"encoder.layers.\1.layer_norm2.\2",
    r"decoder/blocks/(\d+)/feed_forward/norm/(\w+)": r"decoder.layers.\1.final_layer_norm.\2",
    r"decoder/blocks/(\d+)/attention/heads/([qkv])[a-z]+/(\w)": r"decoder.layers.\1.encoder_attn.\2_proj.\3",
    r"decoder/blocks/(\d+)/attention/heads/out/(\w)": r"decoder.layers.\1.encoder_attn.out_proj.\2",
    r"decoder/blocks/(\d+)/attention/norm/(\w+)": r"decoder.layers.\1.encoder_attn_layer_norm.\2",
}
"""Our paths of parameters, and fairseq's names, as in `fconv`."""
OUTPUT = "decoder.output_projection.weight"
UNREAD = re.compile(r"(encoder|decoder)\.(version|embed_positions\._float_tensor|layers\.\d+\.conv\.conv_bias)")
"""Tensors that fairseq stores but does not use. Their values are arbitrary."""


def place(path: str, shape: tuple[int, ...], _tensors: Mapping[str, Any]) -> tuple[str, tuple[int, ...], bool]:
    """fairseq's name and shape of a parameter, and whether its axes are reversed.

    fairseq stores linear maps as [D, C], kernels [K, H] as [H, 1, K], and the maps that make kernels, [C, K, H], as
    [H K, C].
    """
    name = renamed(path, _NAMES)
    if path.endswith("/scores"):
        return name, (shape[1], 1, shape[0]), True
    if path.endswith("/maker"):
        return name, (shape[2] * shape[1], shape[0]), True
    reverse = path.endswith(("/w", "/output_kernel"))
    return name, shape[::-1] if reverse else shape, reverse


def order(_name: str) -> int:
    """Sort key that leaves our order of names."""
    return 0


def unused(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What fairseq stores beside the parameters: versions, and the unused biases of its dynamic convolutions."""
    biases = {
        name.replace("weight_linear.weight", "conv_bias"): np.zeros((1, 1, kernel.shape[1]), np.float32)
        for name, kernel in tensors.items()
        if name.endswith(".weight_linear.weight")
    }
    return biases | {f"{side}.version": np.array([2], np.float32) for side in ("encoder", "decoder")}


def later(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Rename and reshape the tensors of 2019 as in later checkpoints.

    These are layer_norms.0, one matrix for query, key and value, embed_out, and kernels [H, K] of fairseq's CUDA layer.
    """
    result: dict[str, Any] = {}
    for name, value in tensors.items():
        module, _, leaf = name.rpartition(".")
        if leaf in ("in_proj_weight", "in_proj_bias"):
            parts = np.split(np.asarray(value), 3)
            result |= {f"{module}.{x}_proj.{leaf[8:]}": part for x, part in zip("qkv", parts, strict=True)}
        elif name == "decoder.embed_out":
            result[OUTPUT] = value
        elif name.endswith(".conv.weight") and np.ndim(value) == 2:
            result[name] = np.asarray(value)[:, None]
        else:
            result[re.sub(r"\.layer_norms\.([01])\.", lambda m: f".layer_norm{int(m[1]) + 1}.", name)] = value
    return result
