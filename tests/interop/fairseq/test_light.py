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


def of_2019(tensors):
    """The same state dict as fairseq wrote it when it published its models."""
    result = {}
    for name, value in tensors.items():
        if "_proj." in name and ".out_proj." not in name and "output" not in name:
            module, leaf = name.rsplit(".", 2)[0], name.rsplit(".", 1)[1]
            parts = [tensors[f"{module}.{letter}_proj.{leaf}"] for letter in "qkv"]
            result[f"{module}.in_proj_{leaf}"] = np.concatenate(parts)
        else:
            name = name.replace("layer_norm1", "layer_norms.0").replace("layer_norm2", "layer_norms.1")
            result[name.replace("output_projection.weight", "embed_out")] = value
    zeros = {f"{side}.embed_positions._float_tensor": np.zeros(1, np.float32) for side in ("encoder", "decoder")}
    return result | zeros


def of_cuda(tensors):
    """Kernels [H, K], as fairseq's CUDA layer has them."""
    return {name: value[:, 0] if name.endswith("conv.weight") else value for name, value in tensors.items()}


@pytest.mark.parametrize("name", CASES)
def test_an_imported_model_has_fairseqs_logits(name, tmp_path):
    arrays, args, tensors = case(name)
    told = " ".join(examples.bring_in(write(tmp_path, args, tensors), tmp_path / "run"))
    assert "momentum starts afresh" in told
    found, expected, real = examples.logits(tmp_path / "run", arrays), arrays[CASES[name]], arrays["in/target"] != PAD
    assert np.linalg.norm((found - expected)[real]) < 1e-5 * np.linalg.norm(expected[real])
    cfg = examples.held(tmp_path / "run")[0]
    assert (cfg.training.optimizer.kind, cfg.training.optimizer.b2) == ("adam", 0.98)
    assert (cfg.training.schedule.kind, cfg.training.schedule.warmup) == ("inverse_sqrt", 4000)


@pytest.mark.parametrize("change", [of_2019, of_cuda])
@pytest.mark.parametrize("name", ["lightconv_01_glu", "dynamicconv_02_widekernel"])
def test_older_names_and_shapes_are_the_same_parameters(name, change):
    _, args, tensors = case(name)
    cfg = fairseq.config_from_args(args)
    older = change(tensors)
    assert change is of_cuda or len(older) < len(tensors)
    found, expected = (fairseq.params_from_state_dict(cfg, t) for t in (older, tensors))
    jax.tree.map(np.testing.assert_array_equal, found, expected)


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
    _, args, tensors = case("dynamicconv_02_widekernel")
    cfg = fairseq.config_from_args(args)
    params = fairseq.params_from_state_dict(cfg, tensors)
    np.testing.assert_array_equal(params.encoder.embedding.table, params.decoder.embedding.table)
    other = tensors | {"decoder.output_projection.weight": tensors["decoder.embed_tokens.weight"] + 1}
    with pytest.raises(UserError, match=r"decoder.output_projection.weight is not decoder.embed_tokens.weight, though"):
        fairseq.params_from_state_dict(cfg, other)


def test_a_checkpoint_does_not_fit_a_model_of_another_kind():
    _, args, tensors = case("lightconv_01_glu")
    with pytest.raises(UserError, match=r"encoder.layers.0.conv.weight_linear.weight is missing"):
        fairseq.params_from_state_dict(fairseq.config_from_args(args | {"encoder_conv_type": "dynamic"}), tensors)
    cfg = encoder_decoder.ModelConfig(encoder=fairseq.config_from_args(args).encoder)
    with pytest.raises(
        UserError, match=r"^the model's encoder is of kind 'light', its decoder of kind 'conv': no check"
    ):
        fairseq.params_from_state_dict(cfg, tensors)


def test_absent_arguments_are_those_of_the_preset():
    """The big one has the 213 M parameters of table 2 (Wu et al. 2019), with one table of 32,768 sub-words for all."""
    cfg = fairseq.config_from_args({"arch": "lightconv_wmt_en_de_big", "share_all_embeddings": True})
    init = partial(encoder_decoder.init, cfg=cfg, source_vocabulary=32768, target_vocabulary=32768)
    total = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(init, jax.random.key(0))))
    assert round((total - 32768 * 1024) / 1e6) == 213
    assert (cfg.dropout, cfg.decoder.attention_dropout, cfg.encoder.weight_dropout) == (0.3, 0.1, 0.1)
    other = fairseq.config_from_args({"arch": "lightconv_wmt_zh_en_big", "encoder_conv_dim": 512})
    assert (other.dropout, other.encoder.weight_dropout, other.decoder.input_dropout) == (0.2, 0.2, 0.1)
    assert (other.encoder.conv_dim, other.decoder.conv_dim, other.encoder.max_length) == (512, 1024, 1024)
    small = fairseq.config_from_args({"arch": "lightconv_iwslt_de_en", "encoder_kernel_size_list": "[5]"})
    assert (small.encoder.layers, small.decoder.layers) == ((5,) * 7, (3, 7, 15, 31, 31, 31))
    assert (small.encoder.glu, small.encoder.heads, small.encoder.ffn_dim, small.encoder.input_dropout) == (
        False,
        4,
        1024,
        0.0,
    )


@pytest.mark.parametrize("arch", light_arguments.PRESETS)
def test_every_preset_is_a_model(arch):
    cfg = fairseq.config_from_args({"arch": arch})
    assert (cfg.encoder.kind, cfg.decoder.kind, len(cfg.encoder.layers)) == ("light", "light", 7)


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
        ("max_source_positions", "many", r"^the arguments are not those that fairseq writes: can only concatenate str"),
    ],
)
def test_models_that_are_not_among_ours_are_refused(name, value, sentence):
    with pytest.raises(UserError, match=sentence):
        fairseq.config_from_args({"arch": "lightconv", name: value})
