"""Typed configuration: what is accepted, what is refused and with which words."""

import json
import shlex
from dataclasses import FrozenInstanceError, replace
from typing import Literal

import numpy as np
import pytest

from convs2s_jax.core.command_line import split_overrides
from convs2s_jax.core.config import build, check, override, record, to_dict
from convs2s_jax.core.errors import UserError
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.convs2s import ConvEncoderConfig, ConvLayer
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.schedule import PlateauConfig

DATA = {"corpus": "cldr", "src": "en", "tgt": "de"}


def test_missing_fields_take_the_defaults_of_the_records():
    assert build(Config, {"data": DATA}) == Config(data=build(Config, {"data": DATA}).data)
    cfg = build(Config, {"data": DATA, "model": {"encoder": {"layers": [(8, 3), (9, 5, 2)]}}})
    assert cfg.model.encoder.layers == (ConvLayer(8, 3), ConvLayer(9, 5, 2))
    assert cfg.model.encoder.max_positions == 1024
    assert cfg.model.decoder == Config(data=cfg.data).model.decoder


def test_a_field_of_earlier_versions_may_be_there_with_a_value_that_means_nothing():
    old = {"mesh": {"gather_once": []}, "model": {"execution": {"scan_layers": 3}}}
    assert build(Config, {"data": DATA, **old}) == build(Config, {"data": DATA})
    with pytest.raises(
        UserError, match=r"^config\.mesh\.gather_once is \['a'\]: this version has no such field; leave it"
    ):
        build(Config, {"data": DATA, "mesh": {"gather_once": ["a"]}})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (None, r"^config is None: expected fields \(data, model,"),
        ({"modle": {}}, r"^config\.modle: there is no field 'modle'; did you mean 'model'\?$"),
        ({"model": {"xyz": 1}}, r"^config\.model\.xyz: there is no field 'xyz'; available: decoder, dropout, dtype,"),
        ({"training": {"optimizer": {"b1": 0.9}}}, r"^config\.training\.optimizer sets 'b1', a field of kind adam and"),
        ({"training": {"optimizer": {"kind": "adma"}}}, r"optimizer\.kind is 'adma'; did you mean 'adam'\?$"),
        (
            {"training": {"optimizer": "adam"}},
            r"^config\.training\.optimizer is 'adam': expected fields, with 'kind' one of nesterov, adam, adamw$",
        ),
        ({"training": {"optimizer": {"kind": "adam", "b1": 2}}}, r"^config\.training\.optimizer\.b1 is 2\.0: use 0 to"),
        ({"seed": -1}, r"^config\.seed is -1: use 0 or more$"),
        ({"seed": "one"}, r"^config\.seed is 'one': expected an integer$"),
        ({"model": {"dtype": 32}}, r"^config\.model\.dtype is 32; available: bfloat16, float32$"),
        ({"training": 5}, r"^config\.training is 5: expected fields \(optimizer, schedule,"),
        ({"training": {"validate_bleu": 1}}, r"^config\.training\.validate_bleu is 1: expected True or False$"),
        ({"model": {"encoder": {"layers": [(8, 0)]}}}, r"^config\.model\.encoder\.layers\[0\]\.width is 0: a convolu"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_whole_path(values, message):
    with pytest.raises(UserError, match=message):
        build(Config, values if values is None else {"data": DATA, **values})


def test_a_change_of_the_kind_alone_is_refused_with_a_way_that_works():
    """The preset's fields stay, which the user never wrote."""
    values = {"data": DATA, "training": {"schedule": {"kind": "fixed", "rates": [0.25]}}}
    with pytest.raises(UserError) as refused:
        build(Config, override(values, "training.schedule.kind", "plateau"))
    assert str(refused.value) == (
        "config.training.schedule sets 'rates', a field of kind fixed, but its kind is plateau: remove it, or, to "
        "change the kind, set the whole record, as --config.training.schedule=\"{'kind': 'plateau'}\"; did you mean "
        "'rate'?"
    )
    [(path, text)] = split_overrides([shlex.split(str(refused.value).split(", as ")[1].split(";")[0])[0]])[1]
    assert build(Config, override(values, path, text)).training.schedule == PlateauConfig()
    with pytest.raises(UserError, match=r"set the whole record; available: "):
        ModelConfig(encoder={"kind": "none", "units": 3})


@record
class Small:
    size: int
    name: str = ""
    share: float = 0.0
    flag: bool = False
    pair: tuple[int, str] = (0, "")
    bound: int | None = None
    level: Literal[1, 2] = 1

    def __post_init__(self) -> None:
        check(self.size > 0, f"size is {self.size}: use more")


def test_values_are_read_as_their_types():
    small = build(Small, {"size": 1, "name": 2016, "share": 1, "flag": "true", "pair": [3, "x"], "bound": 4})
    assert small == Small(size=1, name="2016", share=1.0, flag=True, pair=(3, "x"), bound=4)
    assert isinstance(small.share, float)
    assert build(Small, {"size": 1, "bound": None}).bound is None
    assert build(Small, [7, "x"]) == Small(size=7, name="x")


def test_a_record_made_in_python_reads_its_values_as_a_file_does():
    """The notation of README and configurations, numbers of numpy, and dictionaries for inner records."""
    sides = {"layers": [(8, 3)] * 2, "convolution": {"kind": "separable", "dilations": [1, 2]}}
    made = ConvEncoderConfig(**sides)
    assert made == build(ConvEncoderConfig, sides)
    assert made.layers == (ConvLayer(8, 3), ConvLayer(8, 3))
    assert hash(made) == hash(replace(made, layers=[[8, 3, 1], ConvLayer(8, 3)]))
    assert ModelConfig(encoder=sides).encoder == made
    small = Small(size=np.int64(3), share=np.float32(0.5), pair=[1, 2])
    assert (small, type(small.size), type(small.share)) == (Small(size=3, share=0.5, pair=(1, "2")), int, float)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ConvEncoderConfig(layers=[(8, "3")]), UserError, r"^layers\[0\]\.width is '3': expected an integer$"),
        (lambda: ModelConfig(encoder={"layers": [(8,)]}), UserError, r"^encoder\.layers\[0\]: width must be set$"),
        (lambda: setattr(ConvLayer(1, 2), "width", 3), FrozenInstanceError, "width"),
    ],
)
def test_a_record_made_in_python_refuses_what_a_file_may_not_say(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"model": {"encoder": {"layers": [(8, 3), (9, 1, 0)]}, "decoder": {"attention_layers": [1, 3]}}, "seed": 3},
        {"training": {"optimizer": {"kind": "adam"}, "schedule": {"kind": "inverse_sqrt", "warmup": 10}}},
        {"training": {"schedule": {"kind": "fixed", "rates": [0.5, 0.25]}, "max_steps": 9}, "search": {"beam_size": 2}},
    ],
)
def test_json_gives_a_configuration_back(values):
    cfg = build(Config, {"data": DATA, **values})
    again = build(Config, json.loads(json.dumps(to_dict(cfg))))
    assert (again, hash(again)) == (cfg, hash(cfg))
