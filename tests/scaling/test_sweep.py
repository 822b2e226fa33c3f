"""Sweeps: which cases there are, what an earlier start has done, efficiency, and the figure."""

import csv
import importlib.util
import json
import math
import operator

import pytest

from convs2s_jax.commands import scale
from convs2s_jax.commands.scale_sweep import SweepOptions
from convs2s_jax.core import stores
from convs2s_jax.core.errors import UserError
from convs2s_jax.scaling import sweep, topology
from convs2s_jax.training.mesh import AXES, MeshConfig
from tests import tiny
from tests.stores import bucket, requests  # noqa: F401  (fixtures)

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
        ("0.1.1", "--meshes has '0.1.1': data is 0: use 1 or more devices"),
        ("-1.-1.1", "--meshes has '-1.-1.1': data and fsdp are -1"),
    ],
)
def test_a_mesh_that_is_none_is_refused(mesh, message):
    with pytest.raises(UserError, match=message):
        cases(topologies=("cpu:8",), meshes=(mesh,))


def test_a_way_or_a_chip_that_is_none_is_refused():
    with pytest.raises(UserError, match="--ways contains 'jot'; did you mean 'jit'"):
        sweep.cases(["cpu:1"], [1], ["-1.1.1"], ["jit", "jot"], tokens=(512,), tokens_per_chip=(), length=16)
    with pytest.raises(UserError, match="--topology=v5:1: the chip is 'v5'; did you mean"):
        cases(topologies=("cpu:1", "v5:1"))


@pytest.mark.parametrize(
    ("mesh", "reason"),
    [
        ("16.1.1", "mesh: data 16 * fsdp 1 * tensor 1 is 16 devices, but there are only 8: lower mesh.data"),
        ("3.-1.1", "mesh: 8 devices cannot be divided by data 3"),
    ],
)
def test_a_mesh_that_does_not_fit_one_topology_is_a_row_with_the_reason(mesh, reason, tmp_path):
    """The other cases of the sweep are planned."""
    wanted = cases(topologies=("cpu:8",), meshes=(mesh, "-1.1.1"), tokens=())
    assert [case.mesh for case in wanted] == [tuple(map(int, mesh.split("."))), (8, 1, 1)]
    (row,) = sweep.run(tiny.config(), wanted[:1], tmp_path, SIZES, print)
    assert row["refused"].startswith(f"--meshes has {mesh}, on cpu:8: {reason}")
    assert row["devices"] == (16 if mesh == "16.1.1" else 8)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"ways": ()}, "--ways is missing"),
        ({"meshes": ()}, "--meshes is missing"),
        ({"slices": ()}, "--slices is missing"),
        ({"slices": (1, 0)}, "--slices contains 0: use 1 or more"),
        ({"vocabulary": 2**31}, "--vocabulary=2147483648: use at least 5 and less"),
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
        "counts": "texts",
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
    next(tmp_path.glob(f"cases/*/{plans[2].name}.json")).unlink()
    again = sweep.run(tiny.config(), cases(), tmp_path, SIZES, told.append)
    assert plans[6:] == [plans[2]]
    assert again == first
    assert "1 of 6: cpu-1_1_1.1.1_jit_all512x16: planned; 1125.00 ms a step" in told
    assert told[-1].endswith("from an earlier run; refused: too large")


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


def test_plans_with_other_settings_are_never_in_one_table(tmp_path, plans, monkeypatch):
    """Configuration, vocabularies, flags of the compiler and versions are the settings."""
    sweep.run(tiny.config(), cases(), tmp_path, SIZES, print)
    one = cases()[:1]
    assert len(sweep.run(tiny.config(seed=7), one, tmp_path, SIZES, print)) == 1
    assert len(sweep.run(tiny.config(), one, tmp_path, {"source": 99, "target": 98}, print)) == 1
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=there")
    assert len(sweep.run(tiny.config(), one, tmp_path, SIZES, print)) == 1
    monkeypatch.setattr(sweep, "versions", lambda *_: "jax 9")
    assert len(sweep.run(tiny.config(), one, tmp_path, SIZES, print)) == 1
    assert len(plans) == 10
    assert len(sweep.run(tiny.config(mesh={"data": 4}), one, tmp_path, SIZES, print)) == 1  # the cases give the mesh
    assert len(plans) == 10


def test_a_number_of_virtual_devices_is_no_setting(monkeypatch):
    def flags(value):
        return sweep.settings_of(tiny.config(), SIZES, {"XLA_FLAGS": value})["flags"]

    assert flags("--xla_force_host_platform_device_count=8 --a=1") == flags("--a=1") != flags("")


def test_a_sweep_in_a_store_continues_from_the_cases_that_a_kill_left(
    tmp_path,
    plans,
    bucket,  # noqa: F811
    requests,  # noqa: F811
    monkeypatch,
    capsys,
):
    """Each case is in the store once it is planned. Table and figures are those of a local sweep."""
    bucket.mkdir()
    monkeypatch.setattr(topology, "only_compile", lambda _: None)
    monkeypatch.setattr(topology, "reserve", lambda _: None)

    def run(output):
        given = [f"--config={tiny.config_file(tmp_path)}", f"--output={output}", "--topologies=cpu:1,cpu:8"]
        scale.console(["convs2s scale", "sweep", *given, "--tokens=512", "--length=16", "--nofigures"])
        return capsys.readouterr().out

    planner = sweep._plan

    def planned_once(*given):
        if plans:
            raise KeyboardInterrupt
        return planner(*given)

    monkeypatch.setattr(sweep, "_plan", planned_once)
    with pytest.raises(SystemExit) as ended:
        run("gs://bucket/sweep/")
    assert ended.value.code == 130
    assert "interrupted after 1 of 2 cases; the same command continues" in capsys.readouterr().out
    [first] = plans
    assert [name.rpartition("/")[2] for name in stores.names("gs://bucket/sweep")] == [
        f"{first.name}.json",
        "settings.json",
    ]
    monkeypatch.setattr(sweep, "_plan", planner)
    told = run("gs://bucket/sweep/")
    assert f"1 of 2: {first.name}: from an earlier run; 1125.00 ms a step" in told
    assert told.splitlines()[-1] == "written: gs://bucket/sweep/sweep.csv"
    assert requests[-1] == ("write", "gs://bucket/sweep/sweep.csv")
    run(tmp_path / "local")
    for name in stores.names("gs://bucket/sweep"):
        assert stores.read(f"gs://bucket/sweep/{name}") == (tmp_path / "local" / name).read_bytes()
    assert len(plans) == 4


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


def test_the_table_and_the_figure_are_files(tmp_path, plans):
    rows = sweep.run(tiny.config(), cases(), tmp_path, SIZES, print)
    table = list(csv.DictReader(sweep.as_csv(rows).splitlines()))
    assert len(table) == 6
    assert table[0]["step_s"] == "1.125"
    assert [row["refused"] for row in table].count("too large") == 1
    assert {row["counts"] for row in table if not row["refused"]} == {"texts"}
    assert sweep.draw(rows, tmp_path) == ["sweep.png", "sweep.svg"]
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert "<!-- texts/s of a chip -->" in (tmp_path / "sweep.svg").read_text()
    assert sweep.draw([row for row in rows if row["refused"]], tmp_path) == []
    assert plans


def rows_of(*meshes, length=16, budget=512):
    """Rows of meshes, with what a figure's lines need."""
    wanted = [
        sweep.Case(
            topology=f"cpu:{math.prod(mesh)}",
            slices=1,
            mesh=mesh,
            parallel="jit",
            tokens=budget,
            each=False,
            length=length,
        )
        for mesh in meshes
    ]
    return [sweep.row_of(case, planned(case)) for case in wanted]


def test_a_line_has_the_fastest_mesh_of_each_number_of_chips():
    rows = rows_of((1, 1, 1), (2, 1, 1), (8, 1, 1), (2, 4, 1), (4, 2, 1))
    rows[-1]["tokens_per_s"] *= 3
    of_a_chip = {row["devices"]: 512 / row["devices"] for row in rows}
    assert sweep.series(rows) == {
        "cpu, one chip, jit, 512 tokens in total, length 16": {1: of_a_chip[1]},
        "cpu, data, jit, 512 tokens in total, length 16": {2: of_a_chip[2], 8: of_a_chip[8]},
        "cpu, data x fsdp, jit, 512 tokens in total, length 16": {8: 3 * of_a_chip[8]},
    }


def test_lengths_have_their_own_efficiency():
    rows = rows_of((1, 1, 1), (8, 1, 1)) + rows_of((8, 1, 1), length=32)
    assert [row["efficiency"] for row in sweep.with_efficiency(rows)] == [1.0, 1 / 8, 1.0]


def test_cases_of_earlier_commands_stay_in_the_table(tmp_path, plans):
    both = sweep.run(tiny.config(), cases(), tmp_path, SIZES, print)
    told = []
    again = sweep.run(tiny.config(), cases(topologies=("cpu:8",), each=()), tmp_path, SIZES, told.append)
    assert len(told) == 2
    key = operator.itemgetter("devices", "data", "batch")
    assert sorted(again, key=key) == sorted(both, key=key)  # the baseline of one chip is still there
    assert [row["batch"] for row in again[:2]] == ["all", "all"]
    assert len(plans) == 6


@pytest.mark.parametrize("field", ["parallel=shard_map", *(f"mesh.{axis}=2" for axis in AXES), "mesh={}"])
def test_what_the_cases_give_is_refused_on_the_command_line(field, tmp_path, capsys):
    given = [f"--config={tiny.config_file(tmp_path, mesh={'fsdp': 2})}", f"--output={tmp_path / 'out'}", "--tokens=64"]
    with pytest.raises(SystemExit) as ended:
        scale.console(["convs2s scale", "sweep", *given, "--topologies=cpu:1", f"--config.{field}"])
    assert ended.value.code == 2
    flag = "--ways" if field.startswith("parallel") else "--meshes"
    others = "; mesh.rules can be set alone" if field == "mesh={}" else ""
    sentence = f"--config.{field}: a sweep sets this with {flag}; use that flag instead{others}\n"
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_rules_are_those_of_the_configuration(tmp_path, monkeypatch):
    """Sizes and way are the cases', also where the configuration's file has others."""
    made = []

    def one(cfg, *_, **__):
        made.append(cfg)
        raise UserError("enough")

    monkeypatch.setattr(sweep.plan, "make", one)
    cfg = tiny.config(mesh={"fsdp": 2, "rules": [["conv/w", ["fsdp", None, None]]]}, parallel="shard_map")
    sweep.run(cfg, cases(topologies=("cpu:1",), tokens=()), tmp_path, SIZES, print)
    (found,) = made
    assert (found.mesh, found.parallel) == (MeshConfig(data=1, rules=cfg.mesh.rules), "jit")
    assert found.mesh.rules


@pytest.mark.parametrize(
    ("name", "slices", "way", "reason"),
    [("cpu:8", 1, "pmap", "plan with jit"), ("cpu:8", 2, "jit", "only TPUs have slices")],
)
def test_a_case_that_cannot_be_planned_is_a_row_with_the_reason(name, slices, way, reason, tmp_path):
    (case,) = sweep.cases([name], [slices], ["-1.1.1"], [way], tokens=[512], tokens_per_chip=[], length=16)
    (row,) = sweep.run(tiny.config(), [case], tmp_path, SIZES, print)
    assert reason in row["refused"]
    (place,) = tmp_path.glob(f"cases/*/{case.name}.json")
    assert json.loads(place.read_text())["refused"] == row["refused"]


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
    assert (folder / "sweep.svg").exists()
