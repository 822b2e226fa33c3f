"""Convert between fairseq's arguments of a light model (`--arch lightconv*`) and our ModelConfig."""

from collections.abc import Mapping
from typing import Any

from convs2s_jax.core.config import build
from convs2s_jax.core.errors import UserError, shown
from convs2s_jax.interop.fairseq import values
from convs2s_jax.interop.fairseq.arguments import POSITIONS, RATE, SIZE
from convs2s_jax.interop.fairseq.values import Rule, checked
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.light.decoder import LightDecoderConfig
from convs2s_jax.models.light.encoder import LightEncoderConfig
from convs2s_jax.models.light.layers import LightConfig

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
}
for _side in ("encoder", "decoder"):
    _BASE |= {f"{_side}_attention_heads": 8, f"{_side}_conv_type": "dynamic", f"{_side}_glu": True}
    _BASE |= {f"{_side}_normalize_before": False, f"{_side}_learned_pos": False}

_ELSE = {
    "decoder_embed_dim": "encoder_embed_dim",
    "decoder_ffn_embed_dim": "encoder_ffn_embed_dim",
    "encoder_conv_dim": "encoder_embed_dim",
    "decoder_conv_dim": "decoder_embed_dim",
    "decoder_output_dim": "decoder_embed_dim",
    "weight_dropout": "attention_dropout",
}
"""Arguments that default to another one if neither the checkpoint nor its preset sets them, in this order."""


def _both(**values: Any) -> dict[str, Any]:
    """The same values for encoder and decoder."""
    return {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in values.items()}


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

_RESERVED = 2
"""Unused rows of a position table. fairseq does not count them, max_positions does."""

RULES: dict[str, Rule] = {
    "arch": values.text,
    "adaptive_softmax_cutoff": values.anything,
    **dict.fromkeys(("dropout", "attention_dropout", "relu_dropout", "input_dropout", "weight_dropout"), RATE),
    **dict.fromkeys(("weight_softmax", "share_decoder_input_output_embed", "share_all_embeddings"), values.flag),
    **dict.fromkeys(("no_token_positional_embeddings",), values.flag),
    **dict.fromkeys(("max_source_positions", "max_target_positions"), POSITIONS),
    "decoder_output_dim": SIZE,
}
"""The arguments of `lightconv` that are used."""
for _side in ("encoder", "decoder"):
    RULES |= {f"{_side}_{_name}": SIZE for _name in ("embed_dim", "conv_dim", "ffn_embed_dim", "attention_heads")}
    RULES |= {f"{_side}_{_name}": values.flag for _name in ("glu", "normalize_before", "learned_pos")}
    RULES |= {f"{_side}_layers": values.whole(1, 1000), f"{_side}_conv_type": values.text}
    RULES |= {f"{_side}_kernel_size_list": values.items(values.whole(1, 2**16))}


def config_from_args(args: Mapping[str, Any]) -> ModelConfig:
    """The model described by fairseq's arguments (`--arch lightconv*`).

    Missing arguments default to the preset `arch`, or to `lightconv`.

    Raises:
      UserError: a model that is not supported, or an argument of the wrong type.
    """
    args = _with_defaults(args)
    _check(args)
    shared = args["share_all_embeddings"]
    tied = shared or args["share_decoder_input_output_embed"]
    model = {
        "embedding_dim": args["encoder_embed_dim"],
        "dropout": args["dropout"],
        "share_embeddings": shared,
        "encoder": _side_values(args, "encoder", "max_source_positions"),
        "decoder": _side_values(args, "decoder", "max_target_positions")
        | {"tied_output": tied, "attention_dropout": args["attention_dropout"]},
    }
    return build(ModelConfig, model, "model")


def args_from_config(cfg: ModelConfig) -> dict[str, Any]:
    """fairseq's arguments for a light model; the inverse of `config_from_args`.

    Raises:
      UserError: fairseq's `lightconv` cannot represent the model.
    """
    encoder, decoder = cfg.encoder, cfg.decoder
    if not isinstance(encoder, LightEncoderConfig) or not isinstance(decoder, LightDecoderConfig):
        raise UserError(
            f"model.encoder.kind is '{encoder.kind}' and model.decoder.kind is '{decoder.kind}', but in fairseq's "
            "lightconv both are of kind 'light'"
        )
    for name in ("input_dropout", "relu_dropout", "weight_dropout"):
        if getattr(encoder, name) != getattr(decoder, name):
            raise UserError(
                f"model.encoder.{name} is {getattr(encoder, name)} and model.decoder.{name} is "
                f"{getattr(decoder, name)}, but fairseq's lightconv uses one rate for both sides"
            )
    return {
        "arch": "lightconv",
        "dropout": cfg.dropout,
        "attention_dropout": decoder.attention_dropout,
        "relu_dropout": encoder.relu_dropout,
        "input_dropout": encoder.input_dropout,
        "weight_dropout": encoder.weight_dropout,
        "weight_softmax": True,
        "share_all_embeddings": cfg.share_embeddings,
        "share_decoder_input_output_embed": decoder.tied_output,
        "adaptive_softmax_cutoff": None,
        "adaptive_softmax_dropout": 0,
        "no_token_positional_embeddings": False,
        "decoder_input_dim": cfg.embedding_dim,
        "decoder_output_dim": cfg.embedding_dim,
        **_side_args(encoder, "encoder", "max_source_positions", cfg.embedding_dim),
        **_side_args(decoder, "decoder", "max_target_positions", cfg.embedding_dim),
    }


def _side_args(cfg: LightConfig, side: str, positions: str, dim: int) -> dict[str, Any]:
    """The inverse of `_side_values`."""
    values = {
        "embed_path": None,
        "embed_dim": dim,
        "conv_dim": cfg.conv_dim,
        "ffn_embed_dim": cfg.ffn_dim,
        "layers": len(cfg.layers),
        "attention_heads": cfg.heads,
        "kernel_size_list": list(cfg.layers),
        "conv_type": cfg.convolution,
        "glu": cfg.glu,
        "normalize_before": cfg.norm_before,
        "learned_pos": cfg.positions == "learned",
    }
    return {f"{side}_{name}": value for name, value in values.items()} | {positions: cfg.max_positions - _RESERVED}


def _with_defaults(args: Mapping[str, Any]) -> dict[str, Any]:
    args = checked(args, RULES)
    result = PRESETS.get(args.get("arch", ""), _BASE) | {name: args[name] for name in (*_BASE, *_ELSE) if name in args}
    for name, other in _ELSE.items():
        result.setdefault(name, result[other])
    return result


def _check(args: Mapping[str, Any]) -> None:
    """Reject options of fairseq that are not supported here."""
    for name, other in (("decoder_embed_dim", "encoder_embed_dim"), ("decoder_output_dim", "decoder_embed_dim")):
        if args[name] != args[other]:
            raise UserError(f"{name} is {args[name]} and {other} is {args[other]}; models here use one size for both")
    if not args["weight_softmax"]:
        raise UserError("weight_softmax is False, but kernels here are always normalised by a softmax")
    if args["no_token_positional_embeddings"]:
        raise UserError("no_token_positional_embeddings is True, but models of this kind always use positions here")
    if args["adaptive_softmax_cutoff"] is not None:
        raise UserError("adaptive_softmax_cutoff is set, but the softmax here is always over the whole vocabulary")


def _side_values(args: Mapping[str, Any], side: str, positions: str) -> dict[str, Any]:
    """Values of an encoder's or a decoder's config."""
    widths, count = args[f"{side}_kernel_size_list"], args[f"{side}_layers"]
    if len(widths) == 1:
        widths = list(widths) * count
    if len(widths) != count:
        raise UserError(
            f"{side}_kernel_size_list is {shown(widths)}; expected one width for each of the {count} {side}_layers"
        )
    return {
        "kind": "light",
        "layers": list(widths),
        "convolution": args[f"{side}_conv_type"],
        "conv_dim": args[f"{side}_conv_dim"],
        "heads": args[f"{side}_attention_heads"],
        "glu": args[f"{side}_glu"],
        "ffn_dim": args[f"{side}_ffn_embed_dim"],
        "norm_before": args[f"{side}_normalize_before"],
        "positions": "learned" if args[f"{side}_learned_pos"] else "sinusoidal",
        "max_positions": args[positions] + _RESERVED,
        "input_dropout": args["input_dropout"],
        "relu_dropout": args["relu_dropout"],
        "weight_dropout": args["weight_dropout"],
    }
