"""fairseq's lightconv and dynamicconv checkpoints to workdirs; `test_light_golden.py` has their numbers."""

import json

import jax
import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.core.tokens import PAD
from convs2s_jax.interop import fairseq
from convs2s_jax.interop.fairseq import families
from convs2s_jax.interop.fairseq.checkpoint import load
from convs2s_jax.models.config import ModelConfig
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


@pytest.mark.drill
@pytest.mark.parametrize("name", CASES)
def test_an_imported_model_has_fairseqs_logits(name, tmp_path):
    arrays, args, tensors = case(name)
    told = " ".join(examples.bring_in(write(tmp_path, args, tensors), tmp_path / "run"))
    assert "momentum starts from zero (training.optimizer is 'adam')" in told
    found, expected, real = examples.logits(tmp_path / "run", arrays), arrays[CASES[name]], arrays["in/target"] != PAD
    assert np.linalg.norm((found - expected)[real]) < 1e-5 * np.linalg.norm(expected[real])
    cfg = examples.held(tmp_path / "run")[0]
    assert (cfg.training.optimizer.kind, cfg.training.optimizer.b2) == ("adam", 0.98)
    assert (cfg.training.schedule.kind, cfg.training.schedule.warmup) == ("inverse_sqrt", 4000)


@pytest.mark.drill
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
        UserError, match=r"embed_out has no counterpart in the model; encoder.layers.0.layer_norms.1.bias has"
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
        "decoder.layers.0.linear1.weight has shape (24, 48), expected (48, 24)",
        "encoder.layers.0.conv.weight_linear.weight has shape (12, 23), expected (12, 24)",
        "decoder.layers.2.fc1.bias has no counterpart in the model",
    ):
        assert part in str(error.value)


def test_a_shared_softmax_that_is_another_table_is_refused():
    _, args, tensors = case("lightconv_02_prenorm_learnedpos_noglu_widekernel")
    tensors["decoder.output_projection.weight"] = tensors["decoder.embed_tokens.weight"] + 1
    with pytest.raises(
        UserError, match=r"decoder.output_projection.weight differs from decoder.embed_tokens.weight, but"
    ):
        fairseq.params_from_state_dict(fairseq.config_from_args(args), tensors)


def test_a_checkpoint_does_not_fit_a_model_of_another_kind():
    _, args, tensors = case("lightconv_02_prenorm_learnedpos_noglu_widekernel")
    with pytest.raises(UserError, match=r"encoder.layers.0.conv.weight_linear.weight is missing"):
        fairseq.params_from_state_dict(fairseq.config_from_args(args | {"encoder_conv_type": "dynamic"}), tensors)
    cfg = ModelConfig(encoder=fairseq.config_from_args(args).encoder)
    with pytest.raises(
        UserError, match=r"^the model's encoder is of kind 'light' and its decoder of kind 'conv'; no fairseq check"
    ):
        fairseq.params_from_state_dict(cfg, tensors)


def test_a_mistake_in_arguments_names_its_file_and_sizes_beyond_all_machines_are_refused(tmp_path):
    _, args, tensors = case("dynamicconv_01_glu")
    for odd, sentence in (
        ({"arch": "transformer"}, "state_dict.npz: arch is 'transformer'"),
        (
            {"encoder_ffn_embed_dim": 2**20},
            r"state_dict.npz: .*fc1.weight has shape \(40, 24\), expected \(1048576, 24\)",
        ),
    ):
        with pytest.raises(UserError, match=sentence):
            examples.bring_in(write(tmp_path, args | odd, tensors), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_momentum_of_nag_starts_afresh_too(tmp_path):
    _, args, tensors = case("dynamicconv_01_glu")
    nag = args | {"optimizer": "nag", "momentum": 0.99, "lr_scheduler": "fixed", "warmup_updates": 0}
    values = examples.content(tensors, nag, examples.buffers(tensors))
    told = examples.bring_in(examples.save(tmp_path, values), tmp_path / "run")
    assert "momentum starts from zero (only the momentum of fconv models is carried over)" in " ".join(told)


def shared_case():
    """A model of fairseq's with one table for encoder, decoder and softmax."""
    _, args, tensors = case("dynamicconv_01_glu")
    table = tensors["decoder.embed_tokens.weight"]
    tensors |= {"encoder.embed_tokens.weight": table, "decoder.output_projection.weight": table}
    return {**args, "share_all_embeddings": True, "share_decoder_input_output_embed": True}, tensors


@pytest.mark.parametrize("name", [*CASES, "shared"])
def test_there_and_back_every_tensor_is_the_same(name):
    args, tensors = shared_case() if name == "shared" else case(name)[1:]
    cfg = fairseq.config_from_args(args)
    family = families.family_of_model(cfg)
    back = family.state_dict(cfg, fairseq.params_from_state_dict(cfg, tensors))
    assert set(back) == set(tensors)
    for key, value in tensors.items():
        np.testing.assert_array_equal(back[key], value, err_msg=key)
        assert back[key].dtype == value.dtype
    assert fairseq.config_from_args(family.args(cfg)) == cfg


@pytest.mark.drill
def test_a_shared_table_comes_in_as_one_and_goes_out_as_one(tmp_path):
    args, tensors = shared_case()
    file = write(tmp_path, args, tensors)
    (tmp_path / "dict.de.txt").write_bytes((tmp_path / "dict.en.txt").read_bytes())
    examples.bring_in(file, tmp_path / "run")
    cfg, vocabularies, state, _ = examples.held(tmp_path / "run")
    assert cfg.model.share_embeddings
    assert vocabularies.joint
    assert state.params.encoder.embedding.table is None
    pytest.importorskip("torch")
    examples.take_out(tmp_path / "run", tmp_path / "out" / "checkpoint.pt")
    held = load(tmp_path / "out" / "checkpoint.pt").tensors
    assert set(held) == set(tensors)
    for name, value in tensors.items():
        np.testing.assert_array_equal(held[name], value, err_msg=name)


def test_a_shared_table_that_is_not_the_same_on_both_sides_is_refused():
    args, tensors = shared_case()
    tensors["encoder.embed_tokens.weight"] = tensors["encoder.embed_tokens.weight"] + 1
    with pytest.raises(UserError, match=r"encoder.embed_tokens.weight differs from decoder.embed_tokens.weight, but"):
        fairseq.params_from_state_dict(fairseq.config_from_args(args), tensors)


@pytest.mark.drill
def test_dictionaries_that_differ_stay_two_beside_a_shared_table(tmp_path):
    args, tensors = shared_case()
    told = " ".join(examples.bring_in(write(tmp_path, args, tensors), tmp_path / "run"))
    assert "the two vocabularies differ" in told
    assert not examples.held(tmp_path / "run")[1].joint
