"""fairseq's arguments and parameters of `fconv` and `lightconv` models, read, written and refused."""

import jax
import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.interop import fairseq
from convs2s_jax.interop.fairseq import families, lightconv
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.light import LightDecoderConfig, LightEncoderConfig
from tests import tiny
from tests.interop.fairseq import examples

CONV = ["fconv_04_share_embed_nopad", "fconv_05_partial_attention", "fconv_06_residual_skip", "fconv_07_even_kernels"]
DYNAMIC, LIGHT = "dynamicconv_01_glu", "lightconv_02_prenorm_learnedpos_noglu_widekernel"
MODELS = [*CONV, "lightconv_01_glu", LIGHT, DYNAMIC, "dynamicconv_02_widekernel", "shared"]


def case(name):
    """Arguments and tensors of a golden case; "shared" has one table for encoder, decoder and softmax."""
    args, tensors = examples.case(DYNAMIC if name == "shared" else name)[1:]
    args["arch"] = "fconv" if name in CONV else "lightconv"
    if name == "shared":
        table = tensors["decoder.embed_tokens.weight"]
        tensors |= {"encoder.embed_tokens.weight": table, "decoder.output_projection.weight": table}
        args |= {"share_all_embeddings": True, "share_decoder_input_output_embed": True}
    return args, tensors


@pytest.mark.parametrize("name", MODELS)
def test_there_and_back_every_argument_and_tensor_is_the_same(name):
    args, tensors = case(name)
    cfg = fairseq.config_from_args(args)
    assert fairseq.config_from_args(families.family_of_model(cfg).args_from_config(cfg)) == cfg
    back, parameters = families.whole_state_dict(cfg, fairseq.params_from_state_dict(cfg, tensors))
    assert set(back) == set(tensors)
    for key, value in tensors.items():
        np.testing.assert_array_equal(back[key], value, err_msg=key)
        assert back[key].dtype == value.dtype
    copies = cfg.decoder.tied_output + cfg.share_embeddings
    assert parameters == sum(not key.endswith(".version") for key in tensors) - copies
    if name in CONV:
        assert list(back) == list(tensors)  # in fairseq's order


# Parameters of each preset at vocabularies of 9336 and 6408.


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
def test_absent_arguments_of_lightconv_are_those_of_the_preset(arch):
    assert set(lightconv.PRESETS) == set(PRESETS)
    dim, ffn, heads, glu, dropout, attention, weight, at_input = PRESETS[arch]
    cfg = fairseq.config_from_args({"arch": arch, "dropout": None})
    assert (cfg.embedding_dim, cfg.dropout, cfg.decoder.attention_dropout) == (dim, dropout, attention)
    for side, widths in ((cfg.encoder, (3, 7, 15, 31, 31, 31, 31)), (cfg.decoder, (3, 7, 15, 31, 31, 31))):
        assert (side.conv_dim, side.ffn_dim, side.heads, side.glu, side.layers) == (dim, ffn, heads, glu, widths)
        assert (side.weight_dropout, side.input_dropout, side.relu_dropout) == (weight, at_input, 0.0)
        form = (side.convolution, side.positions, side.norm_before, side.max_length)
        assert form == ("dynamic", "sinusoidal", False, 1024)


def test_every_argument_of_lightconv_is_that_of_its_side():
    """Each has a value of its own, and so has the model."""
    encoder = {"embed_dim": 8, "conv_dim": 12, "ffn_embed_dim": 20, "layers": 2, "kernel_size_list": [3, 5]}
    decoder = {"embed_dim": 8, "conv_dim": 16, "ffn_embed_dim": 28, "layers": 3, "kernel_size_list": [7, 9, 11]}
    encoder |= {
        "attention_heads": 2,
        "conv_type": "dynamic",
        "glu": False,
        "normalize_before": True,
        "learned_pos": False,
    }
    decoder |= {"attention_heads": 4, "conv_type": "lightweight", "glu": True}
    decoder |= {"normalize_before": False, "learned_pos": True, "output_dim": 8}
    args = {f"encoder_{name}": value for name, value in encoder.items()}
    args |= {f"decoder_{name}": value for name, value in decoder.items()}
    args |= {"arch": "lightconv", "dropout": 0.11, "attention_dropout": 0.12, "relu_dropout": 0.13}
    args |= {"input_dropout": 0.14, "weight_dropout": 0.15, "share_decoder_input_output_embed": True}
    args |= {"max_source_positions": 40, "max_target_positions": 50}
    rates = {"input_dropout": 0.14, "relu_dropout": 0.13, "weight_dropout": 0.15}
    first = {"layers": (3, 5), "convolution": "dynamic", "conv_dim": 12, "heads": 2, "glu": False, "ffn_dim": 20}
    first |= {"norm_before": True, "positions": "sinusoidal", "max_positions": 42}
    second = {"layers": (7, 9, 11), "convolution": "lightweight", "conv_dim": 16, "heads": 4, "glu": True}
    second |= {"ffn_dim": 28, "norm_before": False, "positions": "learned", "max_positions": 52}
    assert fairseq.config_from_args(args) == ModelConfig(
        embedding_dim=8,
        dropout=0.11,
        encoder=LightEncoderConfig(**first, **rates),
        decoder=LightDecoderConfig(**second, tied_output=True, attention_dropout=0.12, **rates),
    )
    shared = {"share_all_embeddings": True, "share_decoder_input_output_embed": False}
    assert fairseq.config_from_args(args | shared).decoder.tied_output


def test_attention_lists_name_layers():
    args = {"arch": "fconv", "decoder_layers": "[(8, 3)] * 3"}
    for text, layers in (("[True, False, True]", (1, 3)), ("[1, 0, 1]", (1, 3)), ("True", None)):
        assert fairseq.config_from_args({**args, "decoder_attention": text}).decoder.attention_layers == layers


@pytest.mark.parametrize(
    ("arch", "name", "value", "sentence"),
    [
        ("fconv", "decoder_attention", "[True, True]", "one for each of the 20 decoder layers"),
        ("fconv", "decoder_attention", "False", "decoder does not read the source, but there is an encoder: let a lay"),
        ("fconv", "encoder_layers", "[open('x', 'w')]", r"^model.encoder.layers is .*: expected a list of"),
        ("fconv", "decoder_embed_dim", 7, "attention needs equal sizes"),
        ("lightconv", "decoder_embed_dim", 256, r"^decoder_embed_dim is 256, but light models here have 512$"),
        ("lightconv", "weight_softmax", False, r"^weight_softmax is False, but light models here have True$"),
        ("lightconv", "adaptive_softmax_cutoff", "1000", r"^adaptive_softmax_cutoff is '1000', but .* here have None$"),
        ("lightconv", "encoder_kernel_size_list", [3, 7], r"^encoder_kernel_size_list is \[3, 7\]; expected one width"),
        ("lightconv", "encoder_conv_type", "wide", r"^model.encoder.convolution is 'wide'"),
    ],
)
def test_models_that_are_not_among_ours_are_refused(arch, name, value, sentence):
    with pytest.raises(UserError, match=sentence):
        fairseq.config_from_args({"arch": arch, name: value})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"encoder__positions": False}, "model.encoder.positions is False, but fairseq's fconv always adds positions"),
        (
            {"decoder__convolution": {"kind": "separable"}},
            "model.decoder.convolution.kind is 'separable', but fairseq's fconv supports dense convolutions only",
        ),
        ({"encoder": {"kind": "slicenet"}}, "the model's encoder is of kind 'slicenet' and its decoder of kind 'conv'"),
    ],
)
def test_models_that_fairseq_cannot_hold_are_refused(change, sentence):
    cfg = tiny.config(**{f"model__{name}": value for name, value in change.items()}).model
    with pytest.raises(UserError, match=sentence):
        families.family_of_model(cfg).args_from_config(cfg)


# Parameters.


def of_2019(tensors, tied):
    """The same state dict as fairseq wrote it when it published its models; what it does not use may be anything."""
    result = {}
    for name, value in tensors.items():
        if tied and name == "decoder.output_projection.weight":
            continue
        if "_proj." in name and ".out_proj." not in name and "output" not in name:
            module, leaf = name.rsplit(".", 2)[0], name.rsplit(".", 1)[1]
            parts = [tensors[f"{module}.{letter}_proj.{leaf}"] for letter in "qkv"]
            result[f"{module}.in_proj_{leaf}"] = np.concatenate(parts)
        else:
            name = name.replace("layer_norm1", "layer_norms.0").replace("layer_norm2", "layer_norms.1")
            result[name.replace("output_projection.weight", "embed_out")] = value
    unused = {f"{side}.embed_positions._float_tensor": np.full(1, np.inf) for side in ("encoder", "decoder")}
    biases = {name: np.full_like(value, np.nan) for name, value in result.items() if name.endswith("conv_bias")}
    return result | unused | biases


def of_cuda(tensors, tied):
    """Kernels [H, K], as fairseq's CUDA layer has them."""
    del tied
    return {name: value[:, 0] if name.endswith("conv.weight") else value for name, value in tensors.items()}


@pytest.mark.parametrize(("name", "change"), [(LIGHT, of_2019), (LIGHT, of_cuda), (DYNAMIC, of_2019)])
def test_older_names_and_shapes_are_the_same_parameters(name, change):
    args, tensors = case(name)
    older = change(tensors, args["share_decoder_input_output_embed"])
    assert {k: v.shape for k, v in older.items()} != {k: v.shape for k, v in tensors.items()}
    cfg = fairseq.config_from_args(args)
    found, expected = (fairseq.params_from_state_dict(cfg, one) for one in (older, tensors))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        (CONV[3], lambda t: t.pop("encoder.fc1.bias"), "encoder.fc1.bias is missing"),
        (CONV[3], lambda t: t.pop("decoder.embed_tokens.weight"), "decoder.embed_tokens.weight is missing"),
        (CONV[3], lambda t: t.update({"decoder.fc2.bias": np.ones(3)}), r"fc2.bias has shape \(3,\), expected"),
        (CONV[3], lambda t: t.clear(), r"encoder.embed_tokens.weight is missing; .*; and \d+ more"),
        (DYNAMIC, lambda t: t.update(x=np.zeros(1)), "x has no counterpart in the model"),
        (
            DYNAMIC,
            lambda t: t.update({"encoder.layers.0.conv.weight_linear.weight": np.zeros((12, 23), np.float32)}),
            r"encoder.layers.0.conv.weight_linear.weight has shape \(12, 23\), expected \(12, 24\)",
        ),
        (
            LIGHT,
            lambda t: t.update({"decoder.output_projection.weight": t["decoder.embed_tokens.weight"] + 1}),
            "decoder.output_projection.weight differs from decoder.embed_tokens.weight, but",
        ),
        (
            "shared",
            lambda t: t.update({"encoder.embed_tokens.weight": t["encoder.embed_tokens.weight"] + 1}),
            "encoder.embed_tokens.weight differs from decoder.embed_tokens.weight, but",
        ),
    ],
)
def test_tensors_that_do_not_fit_are_named(name, change, sentence):
    args, tensors = case(name)
    change(tensors)
    with pytest.raises(UserError, match=f"^the checkpoint does not match the configuration: .*{sentence}"):
        fairseq.params_from_state_dict(fairseq.config_from_args(args), tensors)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda b: b[1:],
            "its 51 momentum buffers do not match its 52 parameters, as after training in half precision",
        ),
        (lambda b: [b[0][:2], *b[1:]], "its 52 momentum buffers do not match its 52 parameters, as after training"),
        (lambda b: [b[0] + 1e37, *b[1:]], "divided by the learning rate of 0.01, is not finite; use --nomomentum"),
    ],
)
def test_momentum_that_does_not_fit_is_refused(change, sentence):
    args, tensors = case(CONV[3])
    cfg = fairseq.config_from_args(args)
    params = fairseq.params_from_state_dict(cfg, tensors)
    with pytest.raises(UserError, match=sentence):
        families.trace(cfg, params, change(examples.buffers(tensors)), 0.01)
