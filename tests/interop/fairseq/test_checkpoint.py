"""Numbers and texts of a checkpoint that make no sense: refused by name, and what is long is cut in the sentence."""

import inspect
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convs2s_jax.core.config import build
from convs2s_jax.core.errors import UserError
from convs2s_jax.interop import fairseq
from convs2s_jax.interop.fairseq import checkpoint, fconv, lightconv, recipe, values
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.training.run.config import TrainingConfig
from tests.interop.fairseq import examples

LONG = "x" * 100_000
LAYOUT = "it is not laid out like a fairseq checkpoint: "


@pytest.fixture(scope="module")
def content():
    return examples.whole()


def refused(content, sentence):
    with pytest.raises(UserError, match=f"^x.pt:?{sentence}") as error:
        checkpoint.parsed(content, "", "x.pt")
    assert len(str(error.value)) < 1000, "what is long is cut"
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("encoder_layers", "[(512, 3), (512,)]", r"encoder_layers\[1\] is \(512,\); expected \(channels, kernel width"),
        ("encoder_layers", [[16, 3], 5], r"encoder_layers\[1\] is 5; expected"),
        ("encoder_layers", [], r"encoder_layers is \[\]; expected a list of 1 to 1000 layers"),
        ("encoder_layers", "[open('x', 'w')]", r"encoder_layers is \"\[open.*; expected a list of 1 to 1000 layers"),
        ("decoder_layers", "[(0, 3)]", r"the channels of decoder_layers\[0\] is 0; expected an integer between 1"),
        ("decoder_layers", "[(16, 10000000)]", r"the width of decoder_layers\[0\] is 10000000; expected an integer"),
        ("decoder_layers", LONG, r"decoder_layers is 'x+\.\.\.x+'; expected a list of"),
        ("share_input_output_embed", "False", "share_input_output_embed is 'False'; expected True or False"),
        ("encoder_embed_dim", 10**400, r"encoder_embed_dim is 10+\.\.\.0+; expected an integer between 1"),
        ("max_source_positions", 16.5, "max_source_positions is 16.5; expected an integer"),
        ("dropout", float("nan"), "dropout is nan; expected a number between 0 and 1"),
        ("dropout", "0.1", "dropout is '0.1'; expected a number between 0 and 1"),
        ("lr", [0.25, float("inf")], r"lr\[1\] is inf; expected a number"),
        ("lr", [], r"lr is \[\]; expected a list of 1 to 1000 items"),
        ("adam_betas", "(0.9,)", r"adam_betas is \(0.9,\); expected a list of 2 to 2 items"),
        ("momentum", True, "momentum is True; expected a number between 0 and 1"),
        ("max_tokens", 10**30, "max_tokens is 10{30}; expected an integer"),
        ("optimizer", LONG, r"optimizer is 'x+\.\.\.x+'; expected a string of at most 1000"),
        ("arch", LONG, r"arch is 'x+\.\.\.x+'; only fairseq's"),
        ("arch", "fconv_lm_dauphin_gbw", "arch is 'fconv_lm_dauphin_gbw'; only fairseq's fconv and lightconv models"),
        ("source_lang", "../../etc/passwd", "source_lang is '../../etc/passwd'; expected the name of a language"),
        ("source_lang", "d\x00e", r"source_lang is 'd\\x00e'; expected the name of a language"),
    ],
)
def test_arguments_that_make_no_sense(content, name, value, sentence):
    refused(content | {"args": content["args"] | {name: value}}, f": {sentence}")


def history(**change):
    return lambda c: {"optimizer_history": [{**c["optimizer_history"][0], **change}]}


def iterator(**values):
    return lambda _: {"extra_state": {"train_iterator": values}}


def momentum(buffer=None, **group):
    """Another first buffer, or other values of its group."""

    def change(content):
        state = content["last_optimizer_state"]
        states = {**state["state"], **({} if buffer is None else {0: {"momentum_buffer": buffer}})}
        return {"last_optimizer_state": {"state": states, "param_groups": [{**state["param_groups"][0], **group}]}}

    return change


def model(**change):
    return lambda c: {"model": {**c["model"], **change}}


ONE = np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (history(num_updates=2**31), "num_updates is 2147483648; expected an integer between 0 and 2147483647"),
        (history(num_updates=-1), "num_updates is -1; expected an integer between 0"),
        (history(num_updates="40"), "num_updates is '40'; expected an integer"),
        (iterator(version=2, epoch=10**30), "its epoch is 10{30}; expected an integer between 0 and 1000000"),
        (iterator(version=2, epoch=float("nan")), "its epoch is nan; expected an integer"),
        (iterator(epoch=3, iterations_in_epoch="all"), f"{LAYOUT}TypeError"),
        (iterator(x=3), f"{LAYOUT}KeyError"),
        (lambda _: {"last_optimizer_state": {"state": {0: 1}}}, f"{LAYOUT}KeyError"),
        (momentum(np.arange(3)), f"{LAYOUT}TypeError: .*momentum_buffer 0 of last_optimizer"),
        (momentum(LONG), f"{LAYOUT}TypeError: .*momentum_buffer 0 of last_optimizer"),
        (momentum(params=[0, 1]), f"{LAYOUT}KeyError: .*in no group"),
        *((momentum(lr_old=rate), "its lr_old is .*; expected a number between 0 and 1e") for rate in (-0.25, "0.25")),
        *((momentum(lr=rate), "its learning rate is .*; expected a number between") for rate in (float("nan"), True)),
        (model(**{"x" * 10_000: ONE}), r"model contains the name 'x+\.\.\.x+'; expected a string of 1 to"),
        (lambda c: {"model": {**c["model"], 7: ONE}}, "model contains the name 7; expected a string of 1 to 200 char"),
        (model(x="text"), r"model\['x'\] is not a tensor of numbers"),
        (model(x=ONE * np.inf), r"model\['x'\] is not finite; use an earlier checkpoint"),
        (lambda _: {"args": None}, "contains neither 'args' nor 'cfg' with a 'model'"),
    ],
)
def test_values_that_make_no_sense(content, change, sentence):
    refused(content | change(content), f".*{sentence}")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (momentum(lr_old=1e-300), "its momentum is scaled by a learning rate of only 1e-300"),
        (history(optimizer_name=LONG), r"its optimiser is 'x+\.\.\.x+'; only NAG's momentum is carried over"),
        (lambda _: {"last_optimizer_state": None}, "it contains no optimiser state"),
        (lambda c: {"model": c["model"] | {"decoder.version": np.ones(1)}}, "its weight normalisation has a different"),
    ],
)
def test_momentum_that_cannot_be_used_is_left_out_with_a_reason(content, change, why):
    found = checkpoint.parsed(content | change(content), "", "x.pt")
    assert found.momentum is None
    assert re.match(why, found.why)
    assert len(found.why) < 1000


@pytest.mark.parametrize(
    ("iterator", "epoch"),
    [
        ({"version": 2, "epoch": 8, "iterations_in_epoch": 0}, 8),
        ({"version": 2, "epoch": 8, "iterations_in_epoch": 5}, 8),
        ({"epoch": 7, "iterations_in_epoch": 500}, 8),
        ({"version": 1, "epoch": 7, "iterations_in_epoch": 0}, 7),
        ({"version": 2, "epoch": 0, "iterations_in_epoch": 0}, 1),
    ],
)
def test_the_epoch_to_go_on_with(content, iterator, epoch):
    assert checkpoint.parsed(content | {"extra_state": {"train_iterator": iterator}}, "", "x.pt").epoch == epoch


def test_the_later_form_of_arguments_says_the_same(content):
    args = dict(content["args"])
    in_model = {name: args.pop(name) for name in list(args) if "coder_" in name or "positions" in name}
    in_model |= {"dropout": args.pop("dropout"), "share_input_output_embed": args.pop("share_input_output_embed")}
    cfg = {
        "model": {"_name": args.pop("arch"), **in_model},
        "optimizer": {"_name": args.pop("optimizer"), "momentum": args.pop("momentum")},
        "lr_scheduler": {"_name": args.pop("lr_scheduler"), "lr_shrink": args.pop("lr_shrink")},
        "criterion": {"_name": args.pop("criterion")},
        "optimization": args,
    }
    found = checkpoint.parsed(content | {"args": None, "cfg": cfg}, "", "x.pt")
    assert found.args == checkpoint.parsed(content, "", "x.pt").args


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
        (fconv, fconv.config_from_args, fconv.RULES),
        (lightconv, lightconv.config_from_args, lightconv.RULES),
        (recipe, lambda args: recipe.recipe(args, None, 1), recipe.RULES),
    ):
        asked = set()
        monkeypatch.setattr(module, "checked", lambda args, given: Seen(values.checked(args, given), asked))  # noqa: B023
        for kind in ("fixed", "cosine", "inverse_sqrt", "reduce_lr_on_plateau"):
            read({"lr_scheduler": kind, "warmup_updates": 3, "lr_period_updates": 9, "optimizer": "adam"})
        assert asked <= set(rules), f"{module.__name__} uses {asked - set(rules)} unchecked"
        assert "checked(" in inspect.getsource(module)


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.integers(-2, 40)
    | st.floats()
    | st.floats(0, 1)
    | st.text(max_size=20)
    | st.sampled_from(["[(16, 3)] * 2", "[3, 5]", "True", "nag", "adam", "fixed", "cosine", "(0.9, 0.98)"])
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
NAMES = sorted({*fconv.RULES, *lightconv.RULES, *recipe.RULES})
ARCHES = st.sampled_from(["fconv", "fconv_iwslt_de_en", "lightconv", "lightconv_iwslt_de_en", "transformer"])


@settings(max_examples=60)
@given(args=st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=8), arch=ARCHES)
def test_any_arguments_are_read_or_refused_in_one_sentence(args, arch):
    def read(convert):
        try:
            return convert()
        except UserError as error:
            told = str(error)
        assert "\n" not in told
        assert 0 < len(told) < 3000

    cfg = read(lambda: fairseq.config_from_args({"arch": arch} | args))
    assert isinstance(cfg, ModelConfig | None)
    read(lambda: build(TrainingConfig, recipe.recipe(args, 0.25, 1).training, "training"))
