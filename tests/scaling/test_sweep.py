"""Sweeps: which cases there are, what an earlier start has done, efficiency, and figures that are files."""

import csv
import importlib.util
import json

import pytest

from convs2s_jax.commands import scale
from convs2s_jax.commands.scale_sweep import SweepOptions
from convs2s_jax.core.errors import UserError
from convs2s_jax.scaling import figures, sweep
from tests import tiny

SIZES = {"source": 150, "target": 150}


def cases(topologies=("cpu:1", "cpu:8"), meshes=("-1.1.1", "1.-1.1"), tokens=(512,), each=(64,)):
    return sweep.cases(topologies, [1], meshes, ["jit"], tokens=tokens, tokens_per_chip=each, length=16)


def test_equal_cases_are_planned_once():
    found = cases()
    assert len(found) == len(set(found)) == 6  # one chip has one mesh
    assert {case.mesh for case in found} == {(1, 1, 1), (8, 1, 1), (1, 8, 1)}


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ("8", "write data.fsdp.tensor"),
        ("a.1.1", "write data.fsdp.tensor"),
        ("--1.1.1", "write data.fsdp.tensor"),
        ("\N{SUPERSCRIPT TWO}.1.1", "write data.fsdp.tensor"),
        ("16.1.1", "use fewer"),
    ],
)
def test_a_mesh_that_is_none_is_refused(mesh, message):
    with pytest.raises(UserError, match=message):
        cases(topologies=("cpu:8",), meshes=(mesh,))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"ways": ("jot",)}, "--ways has 'jot'; did you mean 'jit'"),
        ({"ways": ()}, "--ways is missing"),
        ({"meshes": ()}, "--meshes is missing"),
        ({"slices": ()}, "--slices is missing"),
        ({"slices": (1, 0)}, "--slices has 0: use 1 or more"),
        ({"vocabulary": 2**31}, "--vocabulary=2147483648: use 5 or more and less"),
        ({"labels": 1}, "--labels=1: use 2 or more"),
    ],
)
def test_what_makes_no_cases_is_refused_before_anything_is_written(wrong, message):
    with pytest.raises(UserError, match=message):
        SweepOptions(**{"config": "a", "output": "b", "topologies": ("cpu:1",), "tokens": (64,), **wrong})


def planned(case, *, step=1.0):
    """A plan as JSON, with what a row needs."""
    tokens = case.tokens * (case.mesh[0] * case.mesh[1] if case.each else 1)
    bound = dict.fromkeys(("compute", "memory", "links", "host", "exposed", "mfu"), 0.25)
    program = {"times": 1, "seconds": 2.0, "processor_seconds": 1.0, "collectives": [{"wire": 100.0}]}
    return {
        "fits": True,
        "tokens": [tokens],
        "steps": [{**bound, "seconds": step, "tokens_per_second": tokens / step}],
        "programs": [program, {**program, "times": 3}],
        "resident": 1e9,
        "state_bytes": 5e8,
        "refused": "",
    }


@pytest.fixture
def plans(monkeypatch):
    """Cases that were planned, by a planner that is fast."""
    made = []

    def one(_cfg, case, _sizes):
        made.append(case)
        return (
            {**planned(case), "refused": "too large"}
            if case.mesh == (1, 8, 1) and case.each
            else planned(case, step=0.1 if case.mesh[1] == 8 else 1.0 + case.mesh[0] / 8)
        )

    monkeypatch.setattr(sweep, "_plan", one)
    return made


def test_a_second_start_plans_what_is_missing(tmp_path, plans):
    told = []
    first = sweep.run(tiny.config(), cases(), tmp_path, SIZES, told.append)
    assert len(plans) == 6
    (tmp_path / "cases" / f"{plans[2].name}.json").unlink()
    again = sweep.run(tiny.config(), cases(), tmp_path, SIZES, told.append)
    assert plans[6:] == [plans[2]]
    assert again == first
    assert "1 of 6: cpu-1_1_1.1.1_jit_all512x16: planned; 1125.00 ms a step" in told
    assert told[-1].endswith("from an earlier start; refused: too large")


def test_what_could_not_be_planned_is_tried_again(tmp_path, plans, monkeypatch):
    """The way out may be in the sentence, such as another number of virtual devices."""
    first = cases()[:1]
    monkeypatch.setattr(sweep, "_plan", lambda *_: {"refused": "this process has 2 devices"})
    (row,) = sweep.run(tiny.config(), first, tmp_path, SIZES, print)
    assert row["refused"] == "this process has 2 devices"
    monkeypatch.setattr(sweep, "_plan", lambda _cfg, case, _sizes: planned(case))
    (row,) = sweep.run(tiny.config(), first, tmp_path, SIZES, print)
    assert (row["refused"], row["step_s"]) == ("", 1.0)
    assert plans == []


def test_plans_of_another_configuration_are_refused(tmp_path, plans):
    sweep.run(tiny.config(), cases(), tmp_path, SIZES, print)
    with pytest.raises(UserError, match="has plans of another configuration: give another --output"):
        sweep.run(tiny.config(seed=7), cases(), tmp_path, SIZES, print)
    with pytest.raises(UserError, match="has plans of another configuration"):
        sweep.run(tiny.config(), cases(), tmp_path, {"source": 99, "target": 99}, print)
    assert len(plans) == 6


def test_plans_by_another_compiler_are_refused(tmp_path, plans, monkeypatch):
    sweep.run(tiny.config(), cases(), tmp_path, SIZES, print)
    monkeypatch.setattr(sweep, "versions", lambda *_: "jax 9")
    with pytest.raises(
        UserError, match=r"has plans by convs2s_jax .*jax 0.*, and this is jax 9: give another --output"
    ):
        sweep.run(tiny.config(), cases(), tmp_path, SIZES, print)
    assert len(plans) == 6


def test_efficiency_is_against_the_fewest_chips_at_the_same_tokens(tmp_path, plans):
    rows = sweep.run(tiny.config(), cases(), tmp_path, SIZES, print)
    found = {(row["data"], row["fsdp"], row["batch"]): row["efficiency"] for row in rows if not row["refused"]}
    assert found == {
        (1, 1, "all"): 1.0,
        (1, 1, "each"): 1.0,
        (8, 1, "all"): pytest.approx(1.125 / 2 / 8),
        (8, 1, "each"): pytest.approx(1.125 / 2),
        (1, 8, "all"): pytest.approx(1.125 / 0.1 / 8),  # more than the fewest chips, by a larger cache
    }
    assert [row["sent_bytes"] for row in rows if not row["refused"]] == [400.0] * 5
    assert plans


def test_chips_that_share_rows_are_compared_with_one_that_has_them_alone(tmp_path, plans):
    """The case of tensor parallelism: eight chips have the rows of one."""
    found = sweep.run(tiny.config(), cases(meshes=("1.1.-1",), tokens=()), tmp_path, SIZES, print)
    assert [(row["tensor"], row["efficiency"]) for row in found] == [(1, 1.0), (8, pytest.approx(1 / 8))]
    assert plans


def test_the_table_and_the_figures_are_files(tmp_path, plans):
    rows = sweep.run(tiny.config(), cases(), tmp_path, SIZES, print)
    table = list(csv.DictReader(sweep.as_csv(rows).splitlines()))
    assert len(table) == 6
    assert table[0]["step_s"] == "1.125"
    assert [row["refused"] for row in table].count("too large") == 1
    drawn = figures.draw(rows, tmp_path)
    assert {path.name for path in drawn} == {f"{name}.{kind}" for name in figures.FIGURES for kind in ("png", "svg")}
    assert (tmp_path / "weak.png").read_bytes().startswith(b"\x89PNG")
    assert "efficiency" in (tmp_path / "weak.svg").read_text() or "<svg" in (tmp_path / "weak.svg").read_text()
    assert plans


def test_one_chip_begins_each_line_of_its_tokens(tmp_path, plans):
    rows = [row for row in sweep.run(tiny.config(), cases(), tmp_path, SIZES, print) if not row["refused"]]
    lines = figures.series(rows)
    assert {label: [row["devices"] for row in points] for label, points in lines.items()} == {
        "cpu data, jit, 512 tokens in all": [1, 8],
        "cpu fsdp, jit, 512 tokens in all": [1, 8],
        "cpu data, jit, 64 tokens for each part of the rows": [1, 8],
    }
    assert plans


@pytest.mark.parametrize(
    ("name", "slices", "way", "reason"),
    [("cpu:8", 1, "pmap", "plan with jit"), ("cpu:8", 2, "jit", "slices are of TPUs")],
)
def test_a_case_that_cannot_be_planned_is_a_row_with_the_reason(name, slices, way, reason, tmp_path):
    (case,) = sweep.cases([name], [slices], ["-1.1.1"], [way], tokens=[512], tokens_per_chip=[], length=16)
    (row,) = sweep.run(tiny.config(), [case], tmp_path, SIZES, print)
    assert reason in row["refused"]
    assert json.loads((tmp_path / "cases" / f"{case.name}.json").read_text())["refused"] == row["refused"]


def test_without_its_compiler_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(UserError, match="--topology=v5e:2x2: libtpu is not installed"):
        sweep.run(tiny.config(), cases(topologies=("v5e:2x2",)), tmp_path / "out", SIZES, print)
    assert not (tmp_path / "out").exists()


@pytest.mark.drill
def test_the_command_plans_draws_and_continues(tmp_path, capsys):
    """`convs2s scale sweep` as a user runs it, twice."""
    folder, told = tmp_path / "out", []
    for _ in range(2):
        scale.console(
            [
                *("convs2s scale", "sweep", f"--config={tiny.config_file(tmp_path)}", f"--output={folder}"),
                *("--topologies=cpu:1,cpu:2", "--meshes=-1.1.1", "--tokens_per_chip=256", "--length=8"),
            ]
        )
        told.append(capsys.readouterr().out)
    table = list(csv.DictReader((folder / "sweep.csv").read_text().splitlines()))
    assert [(row["devices"], row["data"], row["fsdp"]) for row in table] == [
        ("1", "1", "1"),
        ("2", "2", "1"),
    ]
    assert all(float(row["step_s"]) > 0 and not row["refused"] for row in table)
    assert float(table[0]["efficiency"]) == 1
    assert [text.count(": planned; ") for text in told] == [2, 0]
    assert f"written: {folder / 'sweep.csv'}" in told[1]
    assert (folder / "weak.svg").exists()


def test_the_command_refuses_a_chip_that_is_none(tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        scale.console(
            [
                "convs2s scale",
                "sweep",
                "--config=cldr_en_de",
                f"--output={tmp_path / 'out'}",
                "--topologies=v5:1",
                "--tokens=64",
            ]
        )
    assert ended.value.code == 2
    assert "the chip is 'v5'" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
