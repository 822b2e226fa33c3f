"""fairseq's arguments of lightconv models, given, absent and refused."""

from functools import partial

import jax
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.interop import fairseq
from convs2s_jax.interop.fairseq import light_arguments
from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.light.decoder import LightDecoderConfig
from convs2s_jax.models.light.encoder import LightEncoderConfig


def test_every_argument_is_that_of_its_side():
    """Each has a value of its own, and so has the model."""
    encoder = {"embed_dim": 8, "conv_dim": 12, "ffn_embed_dim": 20, "layers": 2, "kernel_size_list": [3, 5]}
    decoder = {"embed_dim": 8, "conv_dim": 16, "ffn_embed_dim": 28, "layers": 3, "kernel_size_list": [7, 9, 11]}
    encoder |= {"attention_heads": 2, "conv_type": "dynamic", "glu": 0, "normalize_before": True, "learned_pos": False}
    decoder |= {"attention_heads": 4, "conv_type": "lightweight", "glu": 1}
    decoder |= {"normalize_before": False, "learned_pos": True, "output_dim": 8}
    args = {f"encoder_{name}": value for name, value in encoder.items()}
    args |= {f"decoder_{name}": value for name, value in decoder.items()}
    args |= {"arch": "lightconv", "dropout": 0.11, "attention_dropout": 0.12, "relu_dropout": 0.13}
    args |= {"input_dropout": 0.14, "weight_dropout": 0.15, "share_decoder_input_output_embed": True}
    args |= {"max_source_positions": 40, "max_target_positions": 50}
    rates = {"input_dropout": 0.14, "relu_dropout": 0.13, "weight_dropout": 0.15}
    assert fairseq.config_from_args(args) == ModelConfig(
        embedding_dim=8,
        dropout=0.11,
        encoder=LightEncoderConfig(
            layers=(3, 5),
            convolution="dynamic",
            conv_dim=12,
            heads=2,
            glu=False,
            ffn_dim=20,
            norm_before=True,
            positions="sinusoidal",
            max_positions=42,
            **rates,
        ),
        decoder=LightDecoderConfig(
            layers=(7, 9, 11),
            convolution="lightweight",
            conv_dim=16,
            heads=4,
            glu=True,
            ffn_dim=28,
            norm_before=False,
            positions="learned",
            max_positions=52,
            tied_output=True,
            attention_dropout=0.12,
            **rates,
        ),
    )
    shared = {"share_all_embeddings": True, "share_decoder_input_output_embed": False}
    assert fairseq.config_from_args(args | shared).decoder.tied_output


PRESETS = {
    "lightconv": (512, 2048, 8, True, 0.1, 0.0, 0.0, 0.1),
    "lightconv_iwslt_de_en": (512, 1024, 4, False, 0.1, 0.1, 0.1, 0.0),
    "lightconv_wmt_en_de": (512, 2048, 8, True, 0.1, 0.0, 0.0, 0.1),
    "lightconv_wmt_en_de_big": (1024, 4096, 16, True, 0.3, 0.1, 0.1, 0.1),
    "lightconv_wmt_en_fr_big": (1024, 4096, 16, True, 0.1, 0.1, 0.1, 0.1),
    "lightconv_wmt_zh_en_big": (1024, 4096, 16, True, 0.2, 0.2, 0.2, 0.1),
}
"""E, F, H, gate, and dropout: the model's, of attention, of weights, of input."""


@pytest.mark.parametrize("arch", PRESETS)
def test_absent_arguments_are_those_of_the_preset(arch):
    assert set(light_arguments.PRESETS) == set(PRESETS)
    dim, ffn, heads, glu, dropout, attention, weight, at_input = PRESETS[arch]
    cfg = fairseq.config_from_args({"arch": arch, "dropout": None})
    assert (cfg.embedding_dim, cfg.dropout, cfg.decoder.attention_dropout) == (dim, dropout, attention)
    for side, widths in ((cfg.encoder, (3, 7, 15, 31, 31, 31, 31)), (cfg.decoder, (3, 7, 15, 31, 31, 31))):
        assert (side.conv_dim, side.ffn_dim, side.heads, side.glu, side.layers) == (dim, ffn, heads, glu, widths)
        assert (side.weight_dropout, side.input_dropout, side.relu_dropout) == (weight, at_input, 0.0)
        assert (side.convolution, side.positions, side.norm_before, side.max_length) == (
            "dynamic",
            "sinusoidal",
            False,
            1024,
        )


def test_an_absent_argument_may_be_that_of_another_one():
    cfg = fairseq.config_from_args({"arch": "lightconv", "encoder_ffn_embed_dim": 64, "attention_dropout": 0.3})
    assert (cfg.decoder.ffn_dim, cfg.encoder.weight_dropout) == (64, 0.3)
    own = {"encoder_ffn_embed_dim": 64, "attention_dropout": 0.3, "encoder_kernel_size_list": "[5]"}
    cfg = fairseq.config_from_args({"arch": "lightconv_iwslt_de_en", **own})  # which has its own for the others
    assert (cfg.decoder.ffn_dim, cfg.encoder.weight_dropout, cfg.encoder.layers) == (1024, 0.1, (5,) * 7)


def test_the_big_preset_has_the_parameters_of_the_paper():
    """213 M in table 2 (Wu et al. 2019), with one table of 32,768 sub-words for both sides and the softmax."""
    cfg = fairseq.config_from_args({"arch": "lightconv_wmt_en_de_big", "share_all_embeddings": True})
    init = partial(encoder_decoder.init, cfg=cfg, source_vocabulary=32768, target_vocabulary=32768)
    total = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(init, jax.random.key(0))))
    assert round(total / 1e6) == 213


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("decoder_embed_dim", 256, r"^decoder_embed_dim is 256 and encoder_embed_dim is 512; models here use one size"),
        ("decoder_output_dim", 256, r"^decoder_output_dim is 256 and decoder_embed_dim is 512; models here use one"),
        ("weight_softmax", False, r"^weight_softmax is False, but kernels here are always normalised by a softmax$"),
        ("no_token_positional_embeddings", True, r"^no_token_positional_embeddings is True, but models of this kind"),
        (
            "adaptive_softmax_cutoff",
            "1000",
            r"^adaptive_softmax_cutoff is set, but the softmax here is always over the whole",
        ),
        (
            "encoder_kernel_size_list",
            [3, 7],
            r"^encoder_kernel_size_list is \[3, 7\]; expected one width for each of the 7 enc",
        ),
        (
            "decoder_kernel_size_list",
            "x",
            r"^decoder_kernel_size_list\[0\] is 'x'; expected an integer between 1 and",
        ),
        ("encoder_conv_type", "wide", r"^model.encoder.convolution is 'wide'"),
        (
            "max_source_positions",
            "many",
            r"^max_source_positions is 'many'; expected an integer between 1 and 16777216",
        ),
        ("encoder_layers", 2_000_000, r"^encoder_layers is 2000000; expected an integer between 1 and 1000$"),
        ("weight_softmax", "False", r"^weight_softmax is 'False'; expected True or False$"),
        ("decoder_glu", 2, r"^decoder_glu is 2; expected True or False$"),
        ("dropout", "much", r"^dropout is 'much'; expected a number between 0 and 1$"),
    ],
)
def test_models_that_are_not_among_ours_are_refused(name, value, sentence):
    with pytest.raises(UserError, match=sentence):
        fairseq.config_from_args({"arch": "lightconv", name: value})
