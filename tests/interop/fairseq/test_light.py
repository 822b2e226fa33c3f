"""fairseq's lightconv and dynamicconv checkpoints to workdirs; `test_light_golden.py` has their numbers."""

import json
from functools import partial

import jax
import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.core.tokens import PAD
from convs2s_jax.interop import fairseq
from convs2s_jax.interop.fairseq import light_arguments
from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.encoder_decoder import ModelConfig
from convs2s_jax.models.light_decoder import LightDecoderConfig
from convs2s_jax.models.light_encoder import LightEncoderConfig
from tests.interop.fairseq import examples

CASES = {
    "lightconv_01_glu": "out/logits",
    "lightconv_02_prenorm_learnedpos_noglu_widekernel": "out/logits",
    "dynamicconv_01_glu": "out/logits",
    "dynamicconv_02_widekernel": "out/incremental_logits",  # those of training are of cut kernels there
}
ADAM = {
    "arch": "lightconv",
    "optimizer": "adam",
    "adam_betas": "(0.9, 0.98)",
    "lr": [0.0005],
    "lr_scheduler": "inverse_sqrt",
    "warmup_updates": 4000,
    "warmup_init_lr": 1e-7,
}


def case(name):
    arrays, args, tensors = examples.case(name)
    return arrays, {**args, **ADAM}, tensors


def write(folder, args, tensors):
    """An archive that needs no torch, its arguments and dictionaries."""
    np.savez(folder / "state_dict.npz", **tensors)
    (folder / "config.json").write_text(json.dumps(args))
    for side, language in (("encoder", "de"), ("decoder", "en")):
        examples.write_dictionary(folder, language, len(tensors[f"{side}.embed_tokens.weight"]))
    return folder / "state_dict.npz"


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


@pytest.mark.parametrize("name", CASES)
def test_an_imported_model_has_fairseqs_logits(name, tmp_path):
    arrays, args, tensors = case(name)
    told = " ".join(examples.bring_in(write(tmp_path, args, tensors), tmp_path / "run"))
    assert "momentum starts afresh: training.optimizer is 'adam'" in told
    found, expected, real = examples.logits(tmp_path / "run", arrays), arrays[CASES[name]], arrays["in/target"] != PAD
    assert np.linalg.norm((found - expected)[real]) < 1e-5 * np.linalg.norm(expected[real])
    cfg = examples.held(tmp_path / "run")[0]
    assert (cfg.training.optimizer.kind, cfg.training.optimizer.b2) == ("adam", 0.98)
    assert (cfg.training.schedule.kind, cfg.training.schedule.warmup) == ("inverse_sqrt", 4000)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("lightconv_02_prenorm_learnedpos_noglu_widekernel", of_2019),
        ("lightconv_02_prenorm_learnedpos_noglu_widekernel", of_cuda),
        ("dynamicconv_01_glu", of_2019),
    ],
)
def test_older_names_and_shapes_are_the_same_parameters(name, change, tmp_path):
    _, args, tensors = case(name)
    older = change(tensors, args["share_decoder_input_output_embed"])
    assert {k: v.shape for k, v in older.items()} != {k: v.shape for k, v in tensors.items()}
    examples.bring_in(write(tmp_path, args, older), tmp_path / "run")
    expected = fairseq.params_from_state_dict(fairseq.config_from_args(args), tensors)
    jax.tree.map(np.testing.assert_array_equal, examples.held(tmp_path / "run")[2].params, expected)


def test_an_older_name_beside_the_later_one_has_no_place():
    _, args, tensors = case("dynamicconv_01_glu")
    tensors["decoder.embed_out"] = tensors["decoder.output_projection.weight"] + 1
    tensors["encoder.layers.0.layer_norms.1.bias"] = tensors["encoder.layers.0.layer_norm2.bias"] + 1
    with pytest.raises(
        UserError, match=r"embed_out has no place in the model; encoder.layers.0.layer_norms.1.bias has"
    ):
        fairseq.params_from_state_dict(fairseq.config_from_args(args), tensors)


def test_every_difference_is_named_with_the_shapes_of_fairseq():
    _, args, tensors = case("dynamicconv_01_glu")
    tensors = {name: value for name, value in tensors.items() if name != "encoder.layers.1.fc1.bias"}
    tensors["decoder.layers.0.linear1.weight"] = np.zeros((24, 48), np.float32)
    tensors["encoder.layers.0.conv.weight_linear.weight"] = np.zeros((12, 23), np.float32)
    tensors["decoder.layers.2.fc1.bias"] = np.zeros(40, np.float32)
    with pytest.raises(UserError) as error:
        fairseq.params_from_state_dict(fairseq.config_from_args(args), tensors)
    for part in (
        "encoder.layers.1.fc1.bias is missing",
        "decoder.layers.0.linear1.weight is (24, 48), the model has (48, 24)",
        "encoder.layers.0.conv.weight_linear.weight is (12, 23), the model has (12, 24)",
        "decoder.layers.2.fc1.bias has no place in the model",
    ):
        assert part in str(error.value)


def test_a_shared_softmax_that_is_another_table_is_refused():
    _, args, tensors = case("lightconv_02_prenorm_learnedpos_noglu_widekernel")
    tensors["decoder.output_projection.weight"] = tensors["decoder.embed_tokens.weight"] + 1
    with pytest.raises(UserError, match=r"decoder.output_projection.weight is not decoder.embed_tokens.weight, though"):
        fairseq.params_from_state_dict(fairseq.config_from_args(args), tensors)


def test_a_checkpoint_does_not_fit_a_model_of_another_kind():
    _, args, tensors = case("lightconv_02_prenorm_learnedpos_noglu_widekernel")
    with pytest.raises(UserError, match=r"encoder.layers.0.conv.weight_linear.weight is missing"):
        fairseq.params_from_state_dict(fairseq.config_from_args(args | {"encoder_conv_type": "dynamic"}), tensors)
    cfg = encoder_decoder.ModelConfig(encoder=fairseq.config_from_args(args).encoder)
    with pytest.raises(
        UserError, match=r"^the model's encoder is of kind 'light', its decoder of kind 'conv': no check"
    ):
        fairseq.params_from_state_dict(cfg, tensors)


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
    assert round((total - 32768 * 1024) / 1e6) == 213


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("decoder_embed_dim", 256, r"^decoder_embed_dim is 256 and encoder_embed_dim 512: models here have one size"),
        ("decoder_output_dim", 256, r"^decoder_output_dim is 256 and decoder_embed_dim 512: models here have one"),
        ("weight_softmax", False, r"^weight_softmax is False: kernels here are normalised by a softmax$"),
        ("no_token_positional_embeddings", True, r"^no_token_positional_embeddings is True: models of this kind"),
        ("adaptive_softmax_cutoff", "1000", r"^adaptive_softmax_cutoff is set: the softmax here is over the whole"),
        (
            "encoder_kernel_size_list",
            [3, 7],
            r"^encoder_kernel_size_list is \[3, 7\]: fairseq has a width for each of enc",
        ),
        ("decoder_kernel_size_list", "3", r"^decoder_kernel_size_list is 3: fairseq has a width for each of dec"),
        ("encoder_conv_type", "wide", r"^model.encoder.convolution is 'wide'"),
        (
            "max_source_positions",
            "many",
            r"^max_source_positions is 'many': a whole number from 1 to 16777216 is expec",
        ),
        ("encoder_layers", 2_000_000, r"^encoder_layers is 2000000: a whole number from 1 to 1000 is expected$"),
        ("weight_softmax", "False", r"^weight_softmax is 'False': fairseq has True or False$"),
        ("decoder_glu", 2, r"^decoder_glu is 2: fairseq has True or False$"),
        ("dropout", "much", r"^model.dropout is 'much': expected a number"),
    ],
)
def test_models_that_are_not_among_ours_are_refused(name, value, sentence):
    with pytest.raises(UserError, match=sentence):
        fairseq.config_from_args({"arch": "lightconv", name: value})


def test_a_mistake_in_arguments_names_its_file_and_sizes_beyond_all_machines_are_refused(tmp_path):
    _, args, tensors = case("dynamicconv_01_glu")
    for odd, sentence in (
        ({"weight_softmax": False}, "state_dict.npz: weight_softmax is False"),
        ({"arch": "transformer"}, "state_dict.npz: arch is 'transformer'"),
        (
            {"encoder_ffn_embed_dim": 10**20},
            r"state_dict.npz: .*fc1.weight is \(40, 24\), the model has \(10{20}, 24\)",
        ),
    ):
        with pytest.raises(UserError, match=sentence):
            examples.bring_in(write(tmp_path, args | odd, tensors), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_momentum_of_nag_starts_afresh_too(tmp_path):
    pytest.importorskip("torch")
    _, args, tensors = case("dynamicconv_01_glu")
    nag = args | {"optimizer": "nag", "momentum": 0.99, "lr_scheduler": "fixed", "warmup_updates": 0}
    values = examples.content(tensors, nag, examples.buffers(tensors))
    told = examples.bring_in(examples.save(tmp_path, values), tmp_path / "run")
    assert "momentum starts afresh: only that of fconv is carried over" in " ".join(told)
