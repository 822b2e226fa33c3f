"""Overrides of a configuration: literals, paths, and the bounds of numbers and texts."""

import math

import pytest

from convs2s_jax.core.config import build, literal, override, record, to_dict
from convs2s_jax.core.errors import UserError
from convs2s_jax.training.optimizer import AdamConfig
from convs2s_jax.training.run.config import Config

DATA = {"corpus": "cldr", "src": "en", "tgt": "de"}


@record
class Small:
    size: int
    share: float = 0.5
    name: str = ""
    seed: int = 0
    parts: tuple[int, ...] = ()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.3", 0.3),
        (" 7 ", 7),
        ("-1e-4", -1e-4),
        ("10_000", 10_000),
        ("None", None),
        ("'0.3'", "0.3"),
        ("[(256, 3)] * 4 + [(512, 1)]", [(256, 3)] * 4 + [(512, 1)]),
        ("[[1] * 2, (3,)]", [[1, 1], (3,)]),
        ("{'a': 1}", {"a": 1}),
        ("adam", "adam"),
        ("", ""),
        ("2 * 3", "2 * 3"),
        ("[1] * 100000000000", "[1] * 100000000000"),
        ("[1] * 1000 * 1000", "[1] * 1000 * 1000"),
        ("(" * 300, "(" * 300),
        ("[1]" + " + [1]" * 2000, "[1]" + " + [1]" * 2000),
        ("a\0b", "a\0b"),
    ],
    ids=lambda x: repr(x)[:30],
)
def test_literals_are_read_and_all_else_is_text(text, value):
    assert literal(text) == value
    assert type(literal(text)) is type(value)


def test_nothing_is_ever_evaluated(tmp_path):
    trace = tmp_path / "trace"
    for text in (f"open({str(trace)!r}, 'w')", f"[open({str(trace)!r}, 'w')] * 2", "[x for x in [1]]", "().__class__"):
        assert literal(text) == text
        assert override({}, "model.dropout", text) == {"model": {"dropout": text}}
    assert not trace.exists()


def test_override_sets_one_value_and_changes_nothing_given():
    values = {"model": {"dropout": 0.1, "dtype": "float32"}, "seed": 1}
    assert override(values, "model.dropout", "0.3") == {"model": {"dropout": 0.3, "dtype": "float32"}, "seed": 1}
    assert values["model"]["dropout"] == 0.1
    assert override(values, "training.optimizer.kind", "adam")["training"] == {"optimizer": {"kind": "adam"}}
    assert override({"a": None}, "a.b", "1") == {"a": {"b": 1}}
    assert override({"a": AdamConfig()}, "a.b1", "0.8")["a"] == to_dict(AdamConfig(b1=0.8))


def test_an_override_of_what_has_no_fields_is_refused():
    with pytest.raises(
        UserError, match=r"^config\.a\.x: config\.a is 1, which has no fields; set config\.a as a whole$"
    ):
        override({"a": 1}, "a.x", "1")


MANY = {"hex": "0x" + "f" * 10_000, "digits": "1" * 5000, "real": "1" * 5000 + ".5", "infinite": "1e999"}


@pytest.mark.parametrize("name", MANY)
@pytest.mark.parametrize("path", ["seed", "training.clip", "model.encoder.layers"])
def test_a_number_beyond_all_numbers_is_refused_in_one_short_sentence(path, name):
    with pytest.raises(UserError, match=rf"^config\.{path} is .*(expected|use|available)") as refused:
        build(Config, override({"data": DATA}, path, MANY[name]))
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("values", "message"),
    [
        *(({"share": one}, r"share is .*: use a finite number$") for one in (math.nan, math.inf, -math.inf, 10**400)),
        *(
            ({"size": one}, r"size is .*: expected an integer between -2147483647 and 2147483647$")  # as JAX counts
            for one in (2**31, -(2**31), 10**5000)
        ),
        ({"seed": 2**32}, r"seed is 4294967296: expected an integer between -4294967295 and 4294967295$"),
        ({"name": "x" * 10**6}, r"name is 'xxx.*\.\.\.xxx.*: a string can have at most 4096 characters$"),
        ({"name": "a\0b"}, r"name is 'a\\x00b': a string cannot contain a NUL character$"),
        ({"parts": [1] * 10_001}, r"parts has 10001 items: a list can have at most 10000$"),
        ({"x" * 10**6: 1}, r"xxx.*more characters.*: there is no field"),
    ],
    ids=lambda x: x[:20] if isinstance(x, str) else "",
)
def test_values_have_bounds(values, message):
    assert build(Small, {"size": 2**31 - 1, "seed": 2**32 - 1}) == Small(size=2**31 - 1, seed=2**32 - 1)
    with pytest.raises(UserError, match=rf"^config\.{message}"):
        build(Small, {"size": 1, **values})
