"""Convert between fairseq's model arguments (`--arch fconv*`) and our ModelConfig."""

from collections.abc import Mapping
from typing import Any

from convs2s_jax.core.config import build
from convs2s_jax.core.errors import UserError, shown
from convs2s_jax.interop.fairseq import values
from convs2s_jax.interop.fairseq.values import Rule, checked
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.convs2s.convolutions import DenseConfig
from convs2s_jax.models.convs2s.decoder import ConvDecoderConfig
from convs2s_jax.models.convs2s.encoder import ConvEncoderConfig
from convs2s_jax.models.convs2s.layers import ConvLayer

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

_SECTIONS = (
    "distributed_training",
    "dataset",
    "task",
    "optimization",
    "optimizer",
    "lr_scheduler",
    "criterion",
    "common",
    "model",
)
_NAMED = {"model": "arch", "optimizer": "optimizer", "lr_scheduler": "lr_scheduler", "criterion": "criterion"}


def flat(args: Any, cfg: Any, where: str) -> dict[str, Any]:
    """All arguments of a checkpoint by name, from either format.

    Args:
      args: arguments in the older format, a mapping; None in the later format.
      cfg: arguments in the later format, a mapping of sections; the model section takes precedence.
      where: file name, for error messages.

    Raises:
      UserError: neither is present.
    """
    if isinstance(args, Mapping):
        return dict(args)
    if not isinstance(cfg, Mapping) or not isinstance(cfg.get("model"), Mapping):
        raise UserError(f"{where} contains neither 'args' nor 'cfg' with a 'model', so fairseq's arguments are unknown")
    result: dict[str, Any] = {}
    for section in _SECTIONS:
        values = cfg.get(section)
        if isinstance(values, Mapping):
            result |= {name: value for name, value in values.items() if name != "_name"}
    for section, name in _NAMED.items():
        values = cfg.get(section)
        if name not in result and isinstance(values, Mapping) and "_name" in values:
            result[name] = values["_name"]
    return result


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
    if not isinstance(encoder, ConvEncoderConfig):
        raise UserError(_not_fconv("encoder", encoder.kind))
    if not isinstance(decoder, ConvDecoderConfig):
        raise UserError(_not_fconv("decoder", decoder.kind))
    if cfg.share_embeddings:
        raise UserError(
            "model.share_embeddings is True, but fairseq's fconv has a separate table for each side; train without it"
        )
    for side, convolution in (("encoder", encoder.convolution), ("decoder", decoder.convolution)):
        if not isinstance(convolution, DenseConfig):
            raise UserError(
                f"model.{side}.convolution.kind is '{convolution.kind}', but fairseq's fconv supports "
                "dense convolutions only"
            )
    for side, positions in (("encoder", encoder.positions), ("decoder", decoder.positions)):
        if not positions:
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


def _not_fconv(side: str, kind: str) -> str:
    return f"model.{side}.kind is '{kind}', but only models of kind 'conv' can be exported to fairseq's fconv"


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
