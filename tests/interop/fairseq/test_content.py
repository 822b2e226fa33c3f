"""Numbers and texts of a checkpoint that make no sense: refused by name, and what is long is cut in the sentence."""

import argparse
import inspect

import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.interop import fairseq
from convs2s_jax.interop.fairseq import arguments, families, light_arguments, parameters, recipe, values
from convs2s_jax.nn import weight_norm
from tests.interop.fairseq import examples

LONG = "x" * 100_000


@pytest.fixture(scope="module")
def content():
    return examples.whole()


def refused(folder, content, sentence):
    path = examples.save(folder, content)
    with pytest.raises(UserError, match=sentence) as error:
        examples.bring_in(path, folder / "run")
    assert len(str(error.value)) < 1000, "what is long is cut"
    assert "\n" not in str(error.value)
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        (
            "encoder_layers",
            "[(512, 3), (512,)]",
            r"encoder_layers\[1\] is \(512,\); expected \(channels, kernel width",
        ),
        ("encoder_layers", [[16, 3], 5], r"encoder_layers\[1\] is 5; expected"),
        ("encoder_layers", [], r"encoder_layers is \[\]; expected a list of 1 to 1000 layers"),
        ("decoder_layers", "[(0, 3)]", r"the channels of decoder_layers\[0\] is 0; expected an integer between 1"),
        ("decoder_layers", "[(16, 10000000)]", r"the width of decoder_layers\[0\] is 10000000; expected an integer"),
        ("decoder_layers", [("16", 3)], r"the channels of decoder_layers\[0\] is '16'; expected an integer"),
        ("decoder_layers", LONG, r"decoder_layers is 'x+\.\.\.x+'; expected a list of"),
        ("decoder_attention", LONG, r"decoder_attention is 'x+\.\.\.x+'; expected True"),
        ("share_input_output_embed", "False", "share_input_output_embed is 'False'; expected True or False"),
        ("encoder_embed_dim", -16, "encoder_embed_dim is -16; expected an integer between 1"),
        ("encoder_embed_dim", 10**400, r"encoder_embed_dim is 10+\.\.\.0+; expected an integer between 1"),
        ("max_source_positions", 16.5, "max_source_positions is 16.5; expected an integer"),
        ("dropout", float("nan"), "dropout is nan; expected a number between 0 and 1"),
        ("dropout", "0.1", "dropout is '0.1'; expected a number between 0 and 1"),
        ("lr", [-0.25], r"lr\[0\] is -0.25; expected a number between 0"),
        ("lr", [0.25, float("inf")], r"lr\[1\] is inf; expected a number"),
        ("lr", [[0.25]], r"lr\[0\] is \[0.25\]; expected a number"),
        ("lr", [], r"lr is \[\]; expected a list of 1 to 1000 items"),
        ("lr", "much", r"lr\[0\] is 'much'; expected a number"),
        ("lr_shrink", -1.0, "lr_shrink is -1.0; expected a number between 0 and 1"),
        ("force_anneal", "never", "force_anneal is 'never'; expected an integer"),
        ("momentum", True, "momentum is True; expected a number between 0 and 1"),
        ("weight_decay", float("nan"), "weight_decay is nan; expected a number"),
        ("clip_norm", "0.1", "clip_norm is '0.1'; expected a number"),
        ("max_tokens", 10**30, "max_tokens is 10{30}; expected an integer"),
        ("update_freq", [2.5], r"update_freq\[0\] is 2.5; expected an integer"),
        ("update_freq", "[0]", r"update_freq\[0\] is 0; expected an integer between 1"),
        ("seed", 10**30, "seed is 10{30}; expected an integer"),
        ("optimizer", LONG, r"optimizer is 'x+\.\.\.x+'; expected a string of at most 1000"),
        ("arch", LONG, r"arch is 'x+\.\.\.x+'; only fairseq's"),
        ("arch", 7, "arch is 7; only fairseq's"),
        ("source_lang", "../../etc/passwd", "source_lang is '../../etc/passwd'; expected the name of a language"),
        ("source_lang", "d\x00e", r"source_lang is 'd\\x00e'; expected the name of a language"),
        ("target_lang", LONG, r"target_lang is 'x+\.\.\.x+'; expected a string of at most 1000"),
    ],
)
def test_arguments_that_make_no_sense(content, tmp_path, name, value, sentence):
    args = argparse.Namespace(**{**vars(content["args"]), name: value})
    refused(tmp_path, content | {"args": args}, f"checkpoint.pt: {sentence}")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_updates": 10**30}, "num_updates is 10{30}; expected an integer between 0 and 2147483647"),
        ({"num_updates": -1}, "num_updates is -1; expected an integer between 0"),
        ({"num_updates": 2**31}, "num_updates is 2147483648; expected an integer between 0"),
        ({"num_updates": 40.5}, "num_updates is 40.5; expected an integer"),
        ({"num_updates": "40"}, "num_updates is '40'; expected an integer"),
        ({"optimizer_name": LONG}, ""),
    ],
)
def test_a_history_that_makes_no_sense(content, tmp_path, change, sentence):
    content = content | {"optimizer_history": [{**content["optimizer_history"][0], **change}]}
    if sentence:
        refused(tmp_path, content, f"checkpoint.pt: {sentence}")
    else:
        told = examples.bring_in(examples.save(tmp_path, content), tmp_path / "run")
        assert max(map(len, told)) < 1000


@pytest.mark.parametrize(
    ("iterator", "sentence"),
    [
        ({"version": 2, "epoch": 10**30}, "its epoch is 10{30}; expected an integer between 0 and 1000000"),
        ({"version": 2, "epoch": -3}, "its epoch is -3; expected an integer"),
        ({"version": 2, "epoch": float("nan")}, "its epoch is nan; expected an integer"),
        ({"epoch": 3, "iterations_in_epoch": "all"}, "it is not laid out like a fairseq checkpoint: TypeError"),
        ({LONG: 3}, "it is not laid out like a fairseq checkpoint: KeyError"),
    ],
)
def test_an_epoch_that_makes_no_sense(content, tmp_path, iterator, sentence):
    refused(tmp_path, content | {"extra_state": {"train_iterator": iterator}}, f"checkpoint.pt: {sentence}")


def momentum(content, buffer=None, **group):
    """The checkpoint with another first buffer, or other values of its group."""
    state = content["last_optimizer_state"]
    states = state["state"] if buffer is None else {**state["state"], 0: {"momentum_buffer": buffer}}
    return content | {
        "last_optimizer_state": {"state": states, "param_groups": [{**state["param_groups"][0], **group}]}
    }


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda b: b / 0, "a momentum buffer is not finite; use --nomomentum"),
        (lambda b: b[:2], r".*encoder.embed_tokens.weight has shape \(2, 16\), expected \("),
        (
            lambda b: b.long(),
            "it is not laid out like a fairseq checkpoint: TypeError: .*momentum_buffer 0 of last_optimizer",
        ),
        (
            lambda _: LONG,
            "it is not laid out like a fairseq checkpoint: TypeError: .*momentum_buffer 0 of last_optimizer",
        ),
        (
            lambda b: b + 1e37,
            r"the momentum of encoder.embed_tokens.weight divided by its learning rate, 0.01, is not fini",
        ),
    ],
    ids=["infinite", "shape", "whole numbers", "long text", "overflow"],
)
def test_momentum_that_makes_no_sense(content, tmp_path, change, sentence):
    buffer = content["last_optimizer_state"]["state"][0]["momentum_buffer"]
    refused(tmp_path, momentum(content, change(buffer), lr_old=0.01), f"checkpoint.pt: {sentence}")


@pytest.mark.parametrize("rate", [float("nan"), float("inf"), -0.25, 1e30, "0.25", True], ids=str)
def test_learning_rates_of_a_state_that_make_no_sense(content, tmp_path, rate):
    refused(
        tmp_path, momentum(content, lr_old=rate), "checkpoint.pt: its lr_old is .*; expected a number between 0 and 1e"
    )
    refused(
        tmp_path,
        momentum(content, lr=rate),
        "checkpoint.pt: its learning rate is .*; expected a number between 0 and 1e",
    )


@pytest.mark.parametrize("rate", [0.0, 1e-300])
def test_momentum_over_no_learning_rate_starts_afresh(content, tmp_path, rate):
    told = examples.bring_in(examples.save(tmp_path, momentum(content, lr_old=rate)), tmp_path / "run")
    assert f"momentum starts from zero (its momentum is scaled by a learning rate of only {rate:g})" in " ".join(told)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            lambda m: {**m, "x" * 10_000: m["decoder.fc2.bias"]},
            r"model contains the name 'x+\.\.\.x+'; expected a string of 1 to",
        ),
        (
            lambda m: {**m, "": m["decoder.fc2.bias"]},
            "model contains the name ''; expected a string of 1 to 200 characters",
        ),
        (
            lambda m: {**m, 7: m["decoder.fc2.bias"]},
            "model contains the name 7; expected a string of 1 to 200 characters",
        ),
        (
            lambda m: {**m, "decoder.fc2.bias": m["decoder.fc2.bias"].long()},
            "decoder.fc2.bias contains integers, expected",
        ),
        (lambda m: {**m, "decoder.fc2.bias": m["decoder.fc2.bias"] / 0}, r"model\['decoder.fc2.bias'\] is not finite"),
        (lambda m: {**m, "decoder.fc2.bias": m["decoder.fc2.bias"].double() + 1e300}, r"fc2.bias'\] is not finite"),
    ],
    ids=["long name", "no name", "number", "whole numbers", "not finite", "double"],
)
def test_tensors_that_make_no_sense(content, tmp_path, change, sentence):
    refused(tmp_path, content | {"model": change(content["model"])}, f"checkpoint.pt: .*{sentence}")


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e30], ids=["zero", "underflow", "overflow"])
def test_a_direction_without_norm_is_named(content, tmp_path, value):
    """fairseq itself computes NaN with it."""
    name = "decoder.convolutions.0.weight_v"
    kernel = content["model"][name].clone()
    kernel[:, :, 5] = value
    sentence = (
        rf"checkpoint.pt: {name} has a norm of (0|inf) in channel 5 \(channels affected: 1\); "
        "weight normalisation divides"
    )
    refused(tmp_path, content | {"model": {**content["model"], name: kernel}}, sentence)


@pytest.mark.parametrize("name", ["fconv_07_even_kernels", "fconv_09_old_version1_checkpoint"])
def test_an_output_channel_of_zeros_stays_zero_where_weight_norm_was_removed(name):
    """Its kernel has no direction, so one is chosen: a length of zero times any direction."""
    _, args, tensors = examples.case(name)
    cfg = fairseq.config_from_args(args)
    whole = weight_norm.merge(fairseq.params_from_state_dict(cfg, tensors))
    removed = {k: v for k, v in tensors.items() if "weight_" not in k}
    for key, value in fairseq.state_dict(whole).items():
        removed[key] = np.array(value)
    removed["encoder.fc1.weight"][3] = 0
    removed["decoder.convolutions.0.weight"][..., 3] = 0
    params = parameters.as_version_2(fairseq.params_from_state_dict(cfg, removed))
    parameters.check_directions(params)
    found = fairseq.state_dict(weight_norm.merge(params))
    assert not np.any(found["encoder.fc1.weight"][3])
    assert not np.any(found["decoder.convolutions.0.weight"][..., 3])
    for key, value in found.items():
        np.testing.assert_allclose(value, removed[key], rtol=1e-5, atol=1e-7)


class Seen(dict):
    """Arguments that remember which of them were asked for."""

    def __init__(self, given, asked):
        super().__init__(given)
        self.asked = asked

    def get(self, name, default=None):
        self.asked.add(name)
        return super().get(name, default)

    def __getitem__(self, name):
        self.asked.add(name)
        return super().__getitem__(name)


def test_every_argument_that_is_used_has_a_rule(monkeypatch):
    """What has no rule is left out before it can be used."""
    for module, read, rules in (
        (arguments, arguments.config_from_args, arguments.RULES),
        (light_arguments, light_arguments.config_from_args, light_arguments.RULES),
        (recipe, lambda args: recipe.recipe(args, None, 1), recipe.RULES),
    ):
        asked = set()
        monkeypatch.setattr(module, "checked", lambda args, given: Seen(values.checked(args, given), asked))  # noqa: B023
        for kind in ("fixed", "cosine", "inverse_sqrt", "reduce_lr_on_plateau"):
            read({"lr_scheduler": kind, "warmup_updates": 3, "lr_period_updates": 9, "optimizer": "adam"})
        assert asked <= set(rules), f"{module.__name__} uses {asked - set(rules)} unchecked"
        assert "checked(" in inspect.getsource(module)


def test_checking_twice_changes_nothing():
    _, args, _ = examples.case()
    rules = {**recipe.RULES, **families.FAMILIES["fconv"].rules}
    once = values.checked(args, rules)
    assert values.checked(once, rules) == once
    assert set(once) >= {"encoder_layers", "lr", "seed", "source_lang"}
