"""What a report reads of a workdir: the file's numbers, what is damaged, who trains there."""

import dataclasses
import json
import re
from types import SimpleNamespace

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.data.shapes import Shape
from convs2s_jax.reporting import batch_plan, charts, document, runs, summary
from convs2s_jax.training.run import run_folder, validation
from convs2s_jax.training.run.lock import locked
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.reports import facts, metrics_file
from convs2s_jax.training.run.reports.facts import Facts, RateChange
from convs2s_jax.training.run.reports.reports import Reports
from tests import tiny

FACTS = Facts(
    begun="2026-11-23 10:00:00",
    starts=2,
    devices="4 x TPU v5 lite; jit over data 4 (jax 0.10.2, jaxlib 0.10.2, Python 3.11.7)",
    examples="300 used, 1 skipped with an empty side, 0 skipped as longer than 62 tokens",
    parameters=1234,
    vocabularies=(150, 149),
    rates=(
        RateChange(
            "step 4: validation loss 3.5000 did not improve on 3.4000: learning rate 0.25 -> 0.025", 0.25, 0.025
        ),
        RateChange("epoch 2: learning rate 0.025 -> 0.0025, as the schedule says", 0.025, 0.0025),
    ),
    ended="2026-11-23 10:00:07",
    stopped="step 8, epoch 2",
    why="the learning rate fell below 0.01",
    time="6.0 s, of which compute 50.0 %",
)
RECORDS = [
    {"step": 2, "epoch": 1, "split": "train", "loss": 4.0, "perplexity": 54.5, "memory": 2e9},
    {"step": 4, "epoch": 1, "split": "train", "loss": None, "perplexity": None},
    {"step": 4, "epoch": 1, "split": "valid", "loss": 3.5, "perplexity": 33.1, "bleu": 1.5},
]
KIM = {"kind": "classifier", "embedding_dim": 8, "features": {"kind": "kim", "widths": [3], "maps": 4}}
CONFIGS = {"a": tiny.config(), "b": tiny.config(data__corpus="cldr_kinds", model=KIM)}
"""Of a translator and of a classifier."""


def workdir_at(path, **overrides):
    path.mkdir()
    run_folder.write_config(path, tiny.config(**overrides))
    (path / "metrics.jsonl").write_text("".join(map(metrics_file.line, RECORDS)))
    facts.write(path, FACTS)
    return path


def test_curves_are_the_numbers_of_the_file(tmp_path):
    found = {one.field: one for one in charts.curves([runs.read(workdir_at(tmp_path / "a"), "a")])}
    assert found["loss"].points == (
        ("a", "train", 2, 4.0),
        ("a", "valid", 4, 3.5),
    )  # without the one that is not finite
    assert found["memory"].points == (("a", "train", 2, 2.0),)
    assert charts.missing(list(found.values())) == [
        "Learning rate",
        "Gradient norm",
        "Throughput",
        "Model FLOPs utilisation",
    ]


def test_units_are_those_of_the_task(tmp_path):
    rates = {"step": 4, "split": "train", "loss": 2.0, "tokens_per_second": 9.0, "memory": 2e9}
    text, label = (runs.Run(name, tmp_path, cfg, (rates,)) for name, cfg in CONFIGS.items())
    units = {"loss": "nats per target token", "tokens_per_second": "target tokens per second"}
    assert {one.field: one.unit for one in charts.curves([text])}.items() >= units.items()
    of_labels = {one.field: one.unit for one in charts.curves([label, dataclasses.replace(text, records=())])}
    assert (of_labels["loss"], of_labels["tokens_per_second"]) == ("nats per text", "texts per second")
    both = {one.field: one.unit for one in charts.curves([text, label])}
    assert both["loss"] == "nats per target token or nats per text"
    assert both["memory"] == "GB in use on the device that uses most"


@pytest.mark.parametrize("noun", ["pairs", "texts", "lines"])
def test_training_examples_are_called_what_they_are(tmp_path, noun):
    cfg = CONFIGS["b" if noun == "texts" else "a"]
    if noun == "lines":
        cfg = tiny.config(data__src="", model__encoder={"kind": "none"}, model__decoder__attention_layers=[])
    run = runs.Run("a", tmp_path, cfg, facts=Facts(examples="4 used, 1 skipped"))
    assert dict(summary.facts(run))[f"Training {noun}"] == "4 used, 1 skipped"


def test_classifiers_have_texts_and_labels_in_place_of_pairs(tmp_path, monkeypatch):
    known = Facts(vocabularies=(150, 22))
    text, label = (runs.Run(name, tmp_path, cfg, facts=known) for name, cfg in CONFIGS.items())
    assert dict(summary.facts(label))["Vocabularies"] == "150 text and 22 label entries"
    assert dict(summary.facts(text))["Vocabularies"] == "150 source and 22 target entries"
    plan = batch_plan.BatchPlan((batch_plan.Row(Shape(4, 10, 2), 1, 4, 0.5),), 0.5, ((1, 2, 1, 2, 4),))
    for run, words, other in (
        (text, ("pairs", "source", "target"), "text"),
        (label, ("texts", "text", "label"), "pair"),
    ):
        monkeypatch.setattr(batch_plan, "of_run", lambda *_: plan)
        [found] = document.plan_section([run])
        assert (found["counted"], *found["sides"]) == words
        titles = re.findall(r'"(?:title|text)": "([^"]*)"', json.dumps(found["spec"]))
        assert all(any(word in title for title in titles) for word in words)
        assert not any(other in title for title in titles)


def test_labels_have_their_f1_of_the_test_set(tmp_path):
    text, label = (runs.Run(name, tmp_path, cfg) for name, cfg in CONFIGS.items())
    assert document.label_section([text, label]) is None
    tests = [{"step": step, "split": "test", "loss": 2.0, "f1/price": 10.0 * step, "f1/day": 7.0} for step in (4, 6)]
    one = dataclasses.replace(label, records=tuple(tests))
    assert document.label_section([one]) == {
        "runs": ["b"],
        "rows": [{"label": "price", "f1": [60.0]}, {"label": "day", "f1": [7.0]}],
        "about": "In percent on the test set, at step 6.",
    }
    other = dataclasses.replace(label, name="c", records=({"step": 2, "split": "test", "loss": 1.0, "f1/day": 3.0},))
    found = document.label_section([text, one, other])
    assert (found["runs"], found["about"]) == (
        ["b", "c"],
        "In percent on the test set, at step 6 of b and step 2 of c.",
    )
    assert [row["f1"] for row in found["rows"]] == [[60.0, None], [7.0, 3.0]]


def test_the_column_of_samples_is_headed_by_what_they_are(tmp_path):
    samples = {4: (runs.Sample("a", "b", "c"),)}
    text, label = (runs.Run(name, tmp_path, cfg, samples=samples) for name, cfg in CONFIGS.items())
    without = dataclasses.replace(text, samples={})
    found = [document.output_name(these) for these in ([text], [without, label], [text, label])]
    assert found == ["Translation", "Label", "Translation or Label"]


def test_a_long_curve_keeps_its_extremes():
    points = [charts.Point("a", "train", i, float((i * 7919) % 1009)) for i in range(5000)]
    kept = charts.thinned(points, 100)
    assert len(kept) <= 100
    assert kept[0] == points[0]
    assert kept[-1] == points[-1]
    assert sorted(kept, key=lambda point: point.step) == kept
    for extreme in (min, max):
        assert extreme(point.value for point in kept) == extreme(point.value for point in points)
    assert charts.thinned(points[:100], 100) == points[:100]


def test_damaged_lines_are_told_and_one_being_written_is_not(tmp_path):
    path = workdir_at(tmp_path / "a") / "metrics.jsonl"
    whole = path.read_text().splitlines(keepends=True)
    path.write_text(whole[0] + whole[1].replace("4", "5", 1) + whole[2] + whole[2][:20])
    found = runs.read(path.parent, "a")
    assert [record["step"] for record in found.records] == [2, 4]
    assert found.problems == (f"{path}: 1 line is damaged and was skipped",)
    path.write_text(whole[0] + whole[1].replace("4", "5", 1) + whole[2].rstrip("\n"))  # the last one is whole
    assert runs.read(path.parent, "a").problems == found.problems
    path.unlink()
    (path.parent / "facts.json").unlink()
    samples = path.parent / "samples"
    samples.mkdir()
    (samples / "4.jsonl").write_text('{"source": "a"}\n')
    (samples / "5.jsonl").write_text('{"source": 1, "hypothesis": "b", "reference": "c"}\n')
    (samples / "6.jsonl").write_text('{"source": "\\ud800", "hypothesis": "b", "reference": "c"}\n')
    (samples / "2.jsonl").write_text(json.dumps({"source": "a", "hypothesis": "b", "reference": "c"}))
    found = runs.read(path.parent, "a")
    assert found.samples == {2: (runs.Sample("a", "b", "c"),)}
    assert [problem.partition(str(path.parent))[2] for problem in found.problems] == [
        "/metrics.jsonl has no reports yet, so there are no curves",
        "/facts.json cannot be read (No such file or directory), so devices and reasons are unknown",
        *(f"/samples/{step}.jsonl is damaged and was skipped" for step in (4, 5, 6)),
    ]
    assert "A model: an encoder of kind conv (1 layer)" in summary.paragraph(found)


def test_values_that_json_does_not_know_are_no_points(tmp_path):
    found = runs.read(workdir_at(tmp_path / "a"), "a")
    usual = {curve.field: curve.points for curve in charts.curves([found])}
    odd = [{"step": 9, "split": "train", "epoch": 1, "loss": value} for value in (float("nan"), float("inf"))]
    found = dataclasses.replace(found, records=(*found.records, *odd))
    assert {curve.field: curve.points for curve in charts.curves([found])} == usual


def test_samples_may_hold_what_unicode_calls_line_ends(tmp_path):
    workdir = workdir_at(tmp_path / "a")
    odd = "a\u2028b\x85c\x1c"
    split = SimpleNamespace(text=SimpleNamespace(src=[odd, "d"], tgt=[odd, "e"]))
    validation.write_samples(workdir / "samples", 4, split, [odd, "f"])
    found = runs.read(workdir, "a")
    assert found.samples == {4: (runs.Sample(odd, odd, odd), runs.Sample("d", "f", "e"))}
    assert not found.problems


def test_every_fact_of_a_run_is_there_also_of_earlier_starts(tmp_path):
    rates = {"training__schedule": {"kind": "fixed", "rates": [0.1, 0.05]}, "data__cldr": {"train": 60, "valid": 4}}
    for epochs in (1, 2):
        train(tiny.config(**rates, training__max_epochs=epochs), tmp_path / "run")
    found = facts.read(tmp_path / "run")
    known = dataclasses.asdict(found)
    assert known.pop("origin") == ""  # that of a run that is fine-tuned
    assert all(known.values()), found
    assert (found.starts, [change[1:] for change in found.rates]) == (2, [(0.1, 0.05)])
    assert (found.stopped, found.why) == ("step 4, epoch 2", "training.max_epochs is 2")


def test_a_summary_says_devices_reasons_and_the_end(tmp_path):
    text = summary.paragraph(runs.read(workdir_at(tmp_path / "a"), "a"))
    for part in (
        "A model with 1,234 parameters: an encoder of kind conv (1 layer) and a decoder of kind conv (1 layer).",
        "It was trained on cldr (en to de) using 4 x TPU v5 lite; jit over data 4 (jax 0.10.2, jaxlib 0.10.2, ",
        "The lowest validation loss is 3.5, at step 4, BLEU 1.5.",
        "The learning rate was reduced twice: at step 4: validation loss 3.5000 did not improve on 3.4000: "
        "learning rate 0.25 -> 0.025; the last time at epoch 2: learning rate 0.025 -> 0.0025, as the schedule says.",
        "Training stopped at step 8, epoch 2: the learning rate fell below 0.01.",
    ):
        assert part in text


def test_the_best_error_rate_is_the_lowest(tmp_path):
    scored = {"best_metric": "ter", "metrics": ("ter",), "validate_bleu": True}
    workdir = workdir_at(tmp_path / "a", **{f"training__{name}": value for name, value in scored.items()})
    records = [
        {"step": step, "epoch": 1, "split": "valid", "loss": 3.0, "ter": ter} for step, ter in ((4, 60), (8, 70))
    ]
    (workdir / "metrics.jsonl").write_text("".join(map(metrics_file.line, records)))
    assert "The lowest validation TER is 60, at step 4, loss 3." in summary.paragraph(runs.read(workdir, "a"))


@pytest.mark.parametrize(
    ("stopped", "why", "ending"),
    [
        ("step 51", "the loss is nan, at update 51", "Training stopped at step 51: the loss is nan, at update 51."),
        ("step 51", "SIGTERM", "Training was stopped by SIGTERM at step 51; run the same command to continue."),
        ("", "", "No end is recorded, so training is running elsewhere or was killed."),
    ],
)
def test_the_end_is_that_of_the_last_start(tmp_path, stopped, why, ending):
    run = runs.Run("a", tmp_path, tiny.config(), facts=dataclasses.replace(FACTS, stopped=stopped, why=why))
    assert summary.ending(run) == ending


def test_an_error_is_the_reason_of_the_end(tmp_path):
    def fails():
        with Reports(tmp_path, step=0, found=Facts(devices="a")) as reports:
            assert facts.read(tmp_path).why == ""
            reports.advance(51, 3)
            raise UserError("the disk is full.")

    for starts in (1, 2):
        with pytest.raises(UserError):
            fails()
        found = facts.read(tmp_path)
        assert (found.starts, found.stopped, found.why) == (starts, "step 51, epoch 3", "the disk is full")


@pytest.mark.parametrize(
    ("schedule", "rates", "said"),
    [
        ({"kind": "plateau"}, [], "No change of the learning rate is recorded."),
        ({"kind": "fixed"}, ["0.1 -> 0.2"], "The learning rate was raised once: at epoch 2: learning rate 0.1 -> 0.2."),
        ({"kind": "fixed"}, ["0.1 -> 0.2", "0.2 -> 1e-05"], "The learning rate was changed twice: at epoch 2: "),
        ({"kind": "fixed"}, ["0.1 -> 0.02", "0.02 -> 1e-05"], "The learning rate was reduced twice: at epoch 2: "),
        (
            {"kind": "fixed", "warmup": 9},
            ["0.1 -> 0.2"],
            "The fixed schedule raises the learning rate at every update until step 9. The learning rate was ",
        ),
        (
            {"kind": "cosine", "rate": 0.003, "warmup": 5, "steps": 1470},
            [],
            "The cosine schedule changes the learning rate at every update: it rises to 0.003 until step 5 and then "
            "follows half a cosine down to 1e-07 at step 1,470.",
        ),
        (
            {"kind": "inverse_sqrt"},
            [],
            "The inverse_sqrt schedule changes the learning rate at every update: it rises to 0.0005 until step 4,000 "
            "and then decays as 1 / sqrt(step).",
        ),
    ],
    ids=str,
)
def test_the_learning_rate_is_said_to_move_as_it_does(tmp_path, schedule, rates, said):
    cfg = tiny.config(training__schedule=schedule)
    changes = [RateChange(f"epoch 2: learning rate {rate}", *map(float, rate.split(" -> "))) for rate in rates]
    run = runs.Run("a", tmp_path, cfg, facts=Facts(starts=1, rates=tuple(changes)))
    assert summary.rate_sentences(run).startswith(said)
    fact = dict(summary.facts(run))["Learning rate"]
    assert all(rate in fact for rate in rates)
    assert (fact == "no changes recorded") == said.startswith("No change")


def test_the_test_score_is_that_of_the_best_step_or_says_so(tmp_path):
    def text(*steps):
        reports = [
            (40, "valid", 2.5),
            (80, "valid", 1.5),
            (90, "valid", 1.75),
            *((step, "test", 2.0) for step in steps),
        ]
        records = tuple({"step": step, "split": split, "loss": loss, "bleu": 3.0} for step, split, loss in reports)
        return summary.paragraph(runs.Run("a", tmp_path, tiny.config(), records))

    assert "On the test set, the loss at step 80 is 2, BLEU 3. " in text(40, 80, 90)
    older = (
        "On the test set, the loss at step 40 is 2, BLEU 3. "
        "The best checkpoint on validation, at step 80, has no test score."
    )
    assert older in text(40)
    assert "test" not in text()


def test_a_fine_tuned_run_says_what_it_began_with(tmp_path):
    cfg = tiny.config(training__finetune_from="runs/b")
    run = runs.Run("a", tmp_path, cfg, facts=dataclasses.replace(FACTS, origin="step 441 of runs/base"))
    assert "Training started from the parameters of step 441 of runs/base." in summary.paragraph(run)
    assert ("Started from", "step 441 of runs/base") in summary.facts(run)
    assert ("Started from", "a checkpoint of runs/b") in summary.facts(runs.Run("a", tmp_path, cfg))
    assert "Started from" not in dict(summary.facts(runs.Run("a", tmp_path, tiny.config())))


@pytest.mark.parametrize(
    ("position", "sentence"),
    [
        (
            {"averaged": {"steps": [2, 3], "workdir": "b"}, "data": 1},
            "It is the average of steps 2, 3 of b; nothing was",
        ),
        (
            {"imported": ["c.pt"], "data": None},
            "It is an import of the fairseq checkpoint c.pt; nothing was trained here.",
        ),
        (
            {"imported": ["c.pt", "d.pt"], "data": None},
            "It is an import of the average of the fairseq checkpoints c.pt, d.pt; ",
        ),
        ({"data": None}, "It is an import of a fairseq checkpoint; nothing was trained here."),
        ({"data": 1}, "There is no readable facts.json, so it is unknown how training ended."),
    ],
)
def test_what_was_not_trained_here_says_where_it_is_from(tmp_path, monkeypatch, position, sentence):
    run_folder.write_config(tmp_path, tiny.config())
    (tmp_path / "checkpoints" / "3").mkdir(parents=True)
    monkeypatch.setattr(runs.position_file, "read", lambda _: position)
    found = runs.read(tmp_path, "a")
    assert sentence in summary.paragraph(found)
    assert bool(found.problems) == (position == {"data": 1})
    (tmp_path / "train.log").write_text("")  # from an import training may go on
    assert bool(runs.read(tmp_path, "a").derived) == ("averaged" in position)


def test_facts_that_are_damaged_are_a_problem_and_tell_nothing(tmp_path):
    path = workdir_at(tmp_path / "a")
    (path / "facts.json").write_text((path / "facts.json").read_text().replace("1234", "1235"))
    found = runs.read(path, "a")
    why = "its checksum does not match its content"
    assert found.problems == (f"{path}/facts.json cannot be read ({why}), so devices and reasons are unknown",)
    text, table = summary.paragraph(found), dict(summary.facts(found))
    assert "It was trained on cldr (en to de). The lowest" in text
    assert "There is no readable facts.json, so it is unknown how the learning rate changed." in text
    assert text.endswith("unknown how training ended; the last report is from step 4.")
    assert table["Learning rate"] == summary.UNKNOWN


def test_a_trainer_at_work_is_named_and_not_disturbed(tmp_path):
    path = workdir_at(tmp_path / "a")
    facts.write(path, dataclasses.replace(FACTS, stopped="", why=""))
    assert "or was killed; the last report is from step 4." in summary.ending(runs.read(path, "a"))
    with locked(path):
        before = {file: file.stat().st_mtime_ns for file in path.iterdir()}
        text = summary.ending(runs.read(path, "a"))
        assert text.startswith("Training is in progress (process ")
        assert {file: file.stat().st_mtime_ns for file in path.iterdir()} == before


def test_runs_are_told_apart_by_their_names(tmp_path):
    assert runs.names(["runs/a", "runs/b"]) == ["a", "b"]
    assert runs.names([f"{tmp_path}/x/a", f"{tmp_path}/y/a"]) == ["x/a", "y/a"]
    with pytest.raises(UserError, match="--workdir lists runs/a twice; a report compares different runs"):
        runs.names(["runs/a", "runs/../runs/a"])
