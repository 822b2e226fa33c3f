"""What a report reads of a workdir: the file's numbers, what is damaged, who trains there."""

import dataclasses
import json

import pytest

from convs2s_jax.core.checksums import seal
from convs2s_jax.core.errors import UserError
from convs2s_jax.reporting import charts, runs, summary
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.checkpoints.checkpoint import known_scores
from convs2s_jax.training.run.lock import locked
from convs2s_jax.training.run.reports.records import Facts, metrics_line, read_facts, write_facts
from convs2s_jax.training.run.reports.reports import Reports
from tests import tiny

FACTS = Facts(
    begun="2026-11-23 10:00:00",
    starts=2,
    devices="4 x TPU v5 lite; jit over data 4 (jax 0.10.2)",
    parameters=1234,
    vocabularies=(150, 149),
    rates=("epoch 2: learning rate 0.25 -> 0.025",),
    stopped="step 8, epoch 2",
    why="the learning rate fell below 0.01",
)
RECORDS = [
    {"step": 2, "epoch": 1, "split": "train", "loss": 4.0, "perplexity": 54.5, "memory": 2e9},
    {"step": 4, "epoch": 1, "split": "train", "loss": None, "perplexity": None},
    {"step": 4, "epoch": 1, "split": "valid", "loss": 3.5, "perplexity": 33.1, "bleu": 1.5},
]


def workdir_at(path, **overrides):
    path.mkdir()
    run_folder.write_config(path, tiny.config(**overrides))
    (path / "metrics.jsonl").write_text("".join(map(metrics_line, RECORDS)))
    write_facts(path, FACTS)
    return path


def told(run):
    return dict(summary.facts(run))


def test_curves_are_the_finite_numbers_of_the_file_in_their_units(tmp_path):
    found = runs.read(workdir_at(tmp_path / "a"), "a")
    odd = [{"step": 9, "split": "train", "loss": value} for value in (float("nan"), float("inf"))]
    found = dataclasses.replace(found, records=(*found.records, *odd))
    loss, memory = ([tuple(row.values()) for row in charts.points([found], field)] for field in ("loss", "memory"))
    assert loss == [("a", "train", 2, 4.0), ("a", "valid", 4, 3.5)]
    assert memory == [("a", "train", 2, 2.0)]


def test_a_long_curve_keeps_its_extremes():
    rows = [{"step": i, "value": float((i * 7919) % 1009)} for i in range(5000)]
    kept = charts.thinned(rows, 100)
    assert len(kept) <= 100
    assert (kept[0], kept[-1]) == (rows[0], rows[-1])
    assert sorted(kept, key=lambda row: row["step"]) == kept
    for extreme in (min, max):
        assert extreme(row["value"] for row in kept) == extreme(row["value"] for row in rows)
    assert charts.thinned(rows[:100], 100) == rows[:100]


def test_damaged_lines_are_told_and_one_being_written_is_not(tmp_path):
    path = workdir_at(tmp_path / "a") / "metrics.jsonl"
    whole = path.read_text().splitlines(keepends=True)
    path.write_text(whole[0] + whole[1].replace("4", "5", 1) + whole[2] + whole[2][:20])
    found = runs.read(path.parent, "a")
    assert [record["step"] for record in found.records] == [2, 4]
    assert found.problems == (f"{path}: 1 damaged line skipped",)
    path.unlink()
    (path.parent / "facts.json").write_text((path.parent / "facts.json").read_text().replace("1234", "1235"))
    samples = path.parent / "samples"
    samples.mkdir()
    (samples / "4.jsonl").write_text('{"source": "a"}\n')
    (samples / "5.jsonl").write_text('{"source": 1, "hypothesis": "b", "reference": "c"}\n')
    (samples / "6.jsonl").write_text('{"source": "\\ud800", "hypothesis": "b", "reference": "c"}\n')
    (samples / "2.jsonl").write_text(json.dumps({"source": "a", "hypothesis": "b", "reference": "c"}))
    found = runs.read(path.parent, "a")
    assert found.samples == {2: (runs.Sample("a", "b", "c"),)}
    why = "its checksum does not match its content"
    assert [problem.partition(str(path.parent))[2] for problem in found.problems] == [
        "/metrics.jsonl has no reports yet, so there are no curves",
        f"/facts.json cannot be read ({why}), so devices and reasons are unknown",
        *(f"/samples/{step}.jsonl is damaged and was skipped" for step in (4, 5, 6)),
    ]
    assert not {"Parameters", "Devices and versions", "End"} & set(told(found))


def test_an_error_is_the_reason_of_the_end(tmp_path):
    def fails():
        with Reports(tmp_path, step=0, found=Facts(devices="a")) as reports:
            assert read_facts(tmp_path).why == ""
            reports.advance(51, 3)
            raise UserError("the disk is full.")

    for starts in (1, 2):
        with pytest.raises(UserError):
            fails()
        found = read_facts(tmp_path)
        assert (found.starts, found.stopped, found.why) == (starts, "step 51, epoch 3", "the disk is full")


def test_what_is_known_of_a_run_is_in_its_table(tmp_path):
    found = told(runs.read(workdir_at(tmp_path / "a"), "a"))
    assert (
        found.items()
        >= {
            "Workdir": str(tmp_path / "a"),
            "Model": "encoder conv (1 layer), decoder conv (1 layer)",
            "Parameters": "1,234",
            "Vocabularies": "150 source and 149 target entries",
            "Data": "cldr (en to de)",
            "Devices and versions": "4 x TPU v5 lite; jit over data 4 (jax 0.10.2)",
            "Schedule": "kind plateau, rate 0.25, shrink 0.1, minimum 0.0001, patience 1",
            "Learning rate": "epoch 2: learning rate 0.25 -> 0.025",
            "First start": "2026-11-23 10:00:00, of 2 starts",
            "Best validation by loss": "step 4: Loss 3.5, Perplexity 33.1, BLEU 1.5",
            "End": "step 8, epoch 2: the learning rate fell below 0.01",
        }.items()
    )
    assert not {"Batches", "Started from", "Test set"} & set(found)


@pytest.mark.parametrize(
    ("stopped", "why", "ending"),
    [
        ("step 51", "the loss is nan", "step 51: the loss is nan"),
        ("step 51", "SIGTERM", "step 51: SIGTERM; run the same command to continue"),
        ("", "", "not recorded: training is running elsewhere or was killed"),
    ],
)
def test_the_end_is_that_of_the_last_start(tmp_path, stopped, why, ending):
    run = runs.Run("a", tmp_path, tiny.config(), facts=dataclasses.replace(FACTS, stopped=stopped, why=why))
    assert summary.ending(run) == ending


@pytest.mark.parametrize(("steps", "shown"), [((40, 80, 90), 80), ((40,), 40), ((), None)])
def test_the_test_score_is_that_of_the_best_step_or_the_last(tmp_path, steps, shown):
    reports = [(40, "valid", 2.5), (80, "valid", 1.5), (90, "valid", 1.75), *((step, "test", 2.0) for step in steps)]
    records = tuple({"step": step, "split": split, "loss": loss} for step, split, loss in reports)
    run = runs.Run("a", tmp_path, tiny.config(), records)
    assert told(run).get("Test set") == (shown and f"step {shown}: Loss 2")


def test_a_fine_tuned_run_says_what_it_began_with(tmp_path):
    cfg = tiny.config(training__finetune_from="runs/b")
    run = runs.Run("a", tmp_path, cfg, facts=dataclasses.replace(FACTS, origin="step 441 of runs/b"))
    assert told(run)["Started from"] == "step 441 of runs/b"
    assert told(runs.Run("a", tmp_path, cfg))["Started from"] == "runs/b"


@pytest.mark.parametrize(
    ("position", "end"),
    [
        ({"averaged": {"steps": [2, 3], "workdir": "b"}}, "the average of steps 2, 3 of b; nothing was trained here"),
        ({"imported": ["c.pt", "d.pt"]}, "an import of c.pt, d.pt; nothing was trained here"),
        ({"data": 1}, None),
    ],
)
def test_what_was_not_trained_here_says_where_it_is_from(tmp_path, monkeypatch, position, end):
    run_folder.write_config(tmp_path, tiny.config())
    monkeypatch.setattr(runs.position_file, "newest", lambda _: position)
    found = runs.read(tmp_path, "a")
    assert told(found).get("End") == end
    assert bool(found.problems) == (end is None)


def test_a_trainer_at_work_is_named_and_not_disturbed(tmp_path):
    path = workdir_at(tmp_path / "a")
    with locked(path):
        before = {file: file.stat().st_mtime_ns for file in path.iterdir()}
        assert summary.ending(runs.read(path, "a")).startswith("in progress (process ")
        assert {file: file.stat().st_mtime_ns for file in path.iterdir()} == before


def test_runs_are_told_apart_by_their_names(tmp_path):
    assert runs.names(["runs/a", "runs/b"]) == ["a", "b"]
    assert runs.names([f"{tmp_path}/x/a", f"{tmp_path}/y/a"]) == ["x/a", "y/a"]
    with pytest.raises(UserError, match="--workdir lists runs/a twice; a report compares different runs"):
        runs.names(["runs/a", "runs/../runs/a"])


OF_OTHERS = ("x", [1], {"a": 1}, 10**400)
"""Values that no run writes, with a valid checksum."""


@pytest.mark.parametrize(
    ("name", "contents"),
    [
        ("metrics.jsonl", [metrics_line({"step": 1, "split": "valid", "loss": 1.0, "bleu": x}) for x in OF_OTHERS]),
        ("metrics.jsonl", ['{"step":1,"split":"train","loss":"x"}\n', "[1]\n", f"{'9' * 400}\n", f"{'[' * 100_000}\n"]),
        ("facts.json", [json.dumps(seal({**vars(FACTS), name: x})) for name in vars(FACTS) for x in ({}, 10**400)]),
        ("facts.json", [json.dumps(seal({"a": 1})), "[" * 100_000]),
        ("samples/2.jsonl", ["[" * 100_000, "9" * 400, '{"source": 1, "hypothesis": 2, "reference": 3}', "[1]"]),
    ],
)
def test_what_no_run_has_written_is_skipped_and_said(name, contents, tmp_path):
    workdir = workdir_at(tmp_path / "a")
    (workdir / "samples").mkdir()
    for content in contents:
        (workdir / name).write_text(content)
        found = runs.read(workdir, "a")
        assert sum(str(workdir / name) in problem for problem in found.problems[:1]) == 1, content[:90]
        told(found)


def test_scores_that_are_no_numbers_are_refused(tmp_path):
    for value in (*OF_OTHERS[:3], None):
        (tmp_path / "scores.json").write_text(json.dumps(seal({"scores": {"2": {"loss": value}}})))
        with pytest.raises(UserError, match=r"scores.json is damaged .*: restore it, or delete it; then the newest"):
            known_scores(tmp_path / "checkpoints")
