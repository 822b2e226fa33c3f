"""Runs of a process share their programs where these are equal."""

import dataclasses
import re

import pytest

from convs2s_jax.training.run.compilations import KEPT, CompileCounter, forget, shared
from convs2s_jax.training.run.config import TrainingConfig
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.programs import program_key
from tests import tiny

FIXED = {"kind": "fixed", "rates": [0.1]}
OTHERWISE = {"seed": 5, "training__schedule": FIXED, "training__max_steps": 6}


@pytest.mark.usefixtures("own_programs")
def test_a_second_run_compiles_nothing_and_has_the_bits_of_one_that_compiles_its_own(tmp_path):
    train(tiny.config(), tmp_path / "first")
    with CompileCounter() as counter:
        train(tiny.config(**OTHERWISE), tmp_path / "second")
    assert counter.count == 0
    forget()
    with CompileCounter() as counter:
        train(tiny.config(**OTHERWISE), tmp_path / "alone")
    assert counter.count > 0
    assert tiny.digests(tmp_path / "second", 6) == tiny.digests(tmp_path / "alone", 6)
    assert tiny.digests(tmp_path / "second", 6) != tiny.digests(tmp_path / "first", 8)


OF_PROGRAMS = {
    "clip": 0.2,
    "label_smoothing": 0.1,
    "optimizer": {"kind": "adam"},
    "skip_bad_steps": 2,
    "sum_dtype": "float32",
}
"""Fields of `TrainingConfig` on which programs depend, each with another value."""
NOT_OF_PROGRAMS = {
    "best_metric": "bleu",
    "bleu_tokenize": "none",
    "compile_ahead": 1,
    "finetune_from": "another",
    "keep": 5,
    "max_epochs": 3,
    "max_steps": 9,
    "metrics": ("chrf",),
    "patience": 3,
    "peak_flops": 1e12,
    "profile": "1:2",
    "report_every": 7,
    "save_every": 3,
    "save_every_minutes": 1.0,
    "schedule": FIXED,
    "trackers": ("mlflow",),
    "validate_bleu": False,
    "validate_every": 4,
}


def test_every_field_of_training_is_known_to_be_of_programs_or_not():
    assert {field.name for field in dataclasses.fields(TrainingConfig)} == set(OF_PROGRAMS) | set(NOT_OF_PROGRAMS)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((f"training__{field}", value) for field, value in OF_PROGRAMS.items()),
        ("model__dropout", 0.2),
        ("model__execution__remat", "block"),
        ("parallel", "shard_map"),
        ("data__batch__accumulate", 2),
        ("mesh__fsdp", 2),
        ("mesh__rules", (("decoder/output", (None, "fsdp")),)),
    ],
    ids=str,
)
def test_what_programs_depend_on_gives_other_programs(field, value):
    assert program_key(tiny.config(**{field: value})) != program_key(tiny.config())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *((f"training__{field}", value) for field, value in NOT_OF_PROGRAMS.items()),
        ("seed", 3),
        ("data__batch__shapes", 3),
        ("search__beam_size", 4),
    ],
    ids=str,
)
def test_what_programs_do_not_depend_on_gives_the_same_ones(field, value):
    base = {"training__validate_bleu": True}
    other, usual = tiny.config(**{**base, field: value}), tiny.config(**base)
    assert other != usual
    assert program_key(other) == program_key(usual)
    assert hash(program_key(other)) == hash(program_key(usual))


def test_how_many_updates_may_be_skipped_is_not_in_the_programs():
    one, two = (tiny.config(training__skip_bad_steps=n) for n in (1, 2))
    assert program_key(one) == program_key(two)


def test_the_latest_results_are_kept():
    made = []

    @shared
    def number(n: int) -> int:
        made.append(n)
        return n

    for n in [*range(KEPT), 0, KEPT, 0, 1]:
        assert number(n) == n
    assert made == [*range(KEPT), KEPT, 1]


@pytest.mark.usefixtures("own_programs")
@pytest.mark.drill
def test_the_sweep_of_the_page_compiles_for_its_first_run(tmp_path, monkeypatch):
    page = (tiny.ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    [code] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    file = tiny.config_file(tmp_path, training__schedule=FIXED, training__clip=0.377)  # no other test compiles this
    monkeypatch.chdir(tmp_path)
    exec(compile(code.replace('"cldr_en_de"', repr(str(file))), "docs/training.md", "exec"), {})
    first, second = (tiny.metrics(tmp_path / "runs" / f"rate{rate}") for rate in (0.25, 0.1))
    first, second = ([line for line in lines if line["split"] == "train"][-1] for lines in (first, second))
    assert first["compilations"] > 0
    assert second["compilations"] == 0
    assert first["learning_rate"] != second["learning_rate"]
