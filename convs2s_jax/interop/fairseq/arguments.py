"""fairseq's arguments of a model (`--arch fconv*`) and our ModelConfig, in both directions."""

from collections.abc import Mapping
from typing import Any

from convs2s_jax.core.config import build
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.literals import literal
from convs2s_jax.models.convs2s.convolutions import DenseConfig
from convs2s_jax.models.convs2s.decoder import ConvDecoderConfig
from convs2s_jax.models.convs2s.encoder import ConvEncoderConfig
from convs2s_jax.models.convs2s.layers import ConvLayer
from convs2s_jax.models.encoder_decoder import ModelConfig

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
"""What fairseq takes for the arguments that are absent, by `--arch` (fairseq/models/fconv.py)."""

_SECTIONS = ("dataset", "task", "optimization", "optimizer", "lr_scheduler", "criterion", "common", "model")
_NAMED = {"model": "arch", "optimizer": "optimizer", "lr_scheduler": "lr_scheduler", "criterion": "criterion"}


def flat(args: Any, cfg: Any, where: str) -> dict[str, Any]:
    """All arguments of a checkpoint by name, from the older or the later format.

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
        raise UserError(f"{where} holds neither 'args' nor 'cfg' with a 'model': fairseq's arguments are not known")
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
    """The model that fairseq's own arguments describe (`--arch fconv*`).

    Layer lists are read as literals, never evaluated. Missing arguments take the values of the preset `arch`, by
    default `fconv`.

    Raises:
      UserError: encoder and decoder of different embedding size, or an invalid list of layers or attentions.
    """
    args = _with_defaults(args)
    encoder_dim, decoder_dim = args["encoder_embed_dim"], args["decoder_embed_dim"]
    if encoder_dim != decoder_dim:
        raise UserError(
            f"encoder_embed_dim is {encoder_dim} and decoder_embed_dim {decoder_dim}: attention needs equal sizes"
        )
    layers = literal(str(args["decoder_layers"]))
    values = {
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
            "attention_layers": _attention_layers(literal(str(args["decoder_attention"])), layers),
            "out_dim": args["decoder_out_embed_dim"],
            "tied_output": bool(args["share_input_output_embed"]),
            "max_positions": args["max_target_positions"],
        },
    }
    return build(ModelConfig, values, "model")


def args_from_config(cfg: ModelConfig) -> dict[str, Any]:
    """fairseq's arguments of a model; the inverse of `config_from_args`.

    Raises:
      UserError: fairseq's `fconv` cannot represent the model.
    """
    encoder, decoder = cfg.encoder, cfg.decoder
    if not isinstance(encoder, ConvEncoderConfig):
        raise UserError(_not_fconv("encoder", encoder.kind))
    if not isinstance(decoder, ConvDecoderConfig):
        raise UserError(_not_fconv("decoder", decoder.kind))
    if cfg.share_embeddings:
        raise UserError("model.share_embeddings is True: fairseq's fconv has a table for each side; train without it")
    for side, convolution in (("encoder", encoder.convolution), ("decoder", decoder.convolution)):
        if not isinstance(convolution, DenseConfig):
            raise UserError(
                f"model.{side}.convolution.kind is '{convolution.kind}': fairseq's fconv has dense convolutions only"
            )
    for side, positions in (("encoder", encoder.positions), ("decoder", decoder.positions)):
        if not positions:
            raise UserError(f"model.{side}.positions is False: fairseq's fconv always adds positions; train with them")
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
    return f"model.{side}.kind is '{kind}': only models of fairseq's fconv can be exported, whose kind is 'conv'"


def _with_defaults(args: Mapping[str, Any]) -> dict[str, Any]:
    return PRESETS.get(str(args.get("arch")), _BASE) | {
        name: args[name] for name in _BASE if args.get(name) is not None
    }


def _attention_layers(attention: Any, layers: Any) -> list[int] | None:
    """Numbers of the layers that attend, from 1; None for all of them."""
    count = len(layers) if isinstance(layers, list | tuple) else 0
    if isinstance(attention, bool):
        attention = [attention] * count
    right = isinstance(attention, list | tuple) and all(isinstance(yes, bool) for yes in attention)
    if not right or (count and len(attention) != count):
        raise UserError(
            f"decoder_attention is {attention!r}: fairseq has True, False, or a list of them, one for each of the "
            f"{count} decoder layers"
        )
    return None if all(attention) else [i + 1 for i, yes in enumerate(attention) if yes]


def _written(layers: tuple[ConvLayer, ...]) -> str:
    """A layer list in fairseq's syntax; the third number is its residual."""
    return str([(x.channels, x.width) if x.skip == 1 else (x.channels, x.width, x.skip) for x in layers])
