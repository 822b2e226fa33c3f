"""Trackers get the metrics of metrics.jsonl; one that fails, or is not installed, costs a sentence and no training."""

import importlib.util
import json
import math
import shutil

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.training.run.config import TrainingConfig
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.reports import trackers
from convs2s_jax.training.run.reports.reports import Reports
from tests import tiny


class Recorded:
    """A tracker that keeps what it is given; it fails at the step `fails`."""

    def __init__(self, run, fails=None):
        self.run, self.fails, self.logged, self.closed = run, fails, [], None
        ALL.append(self)

    def log(self, values, step):
        if step == self.fails:
            raise OSError("no network")
        self.logged.append((step, values))

    def close(self, *, failed):
        self.closed = "failed" if failed else "ended"


ALL = []


@pytest.fixture
def recorded(monkeypatch):
    ALL.clear()
    monkeypatch.setattr(trackers, "TRACKERS", {"good": Recorded, "bad": lambda run: Recorded(run, fails=2)})
    return ALL


def test_each_report_reaches_the_trackers_and_a_failing_one_is_told_once(recorded, tmp_path, capsys):
    config = {"seed": 3, "model": {"dropout": 0.1}}
    with Reports(tmp_path, step=0, trackers=("bad", "good"), config=config) as reports:
        for step in (1, 2, 3):
            reports.metrics(step=step, epoch=1, split="train", loss=1.0 / step, tokens_per_second=10.0)
    bad, good = recorded
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [step for step, _ in good.logged] == [1, 2, 3]
    for (step, values), line in zip(good.logged, lines, strict=True):
        assert values["train/loss"] == line["loss"] == 1.0 / step
        assert values["train/perplexity"] == math.exp(1.0 / step)
        assert values["train/tokens_per_second"] == 10.0
    assert good.run.fields == {"seed": 3, "model.dropout": 0.1}
    assert good.closed == "ended"
    assert [step for step, _ in bad.logged] == [1]
    assert (tmp_path / "train.log").read_text().count(
        "bad failed and receives no more metrics from this start: no network"
    ) == 1


def test_a_continued_run_keeps_its_id_and_a_copy_of_its_workdir_has_another(recorded, tmp_path):
    (tmp_path / "run").mkdir()
    for name, step in (("run", 0), ("run", 4), ("copy", 4), ("copy", 8), ("run", 4)):
        if name == "copy" and step == 4:
            shutil.copytree(tmp_path / "run", tmp_path / "copy")
        with Reports(tmp_path / name, step=step, trackers=("good", "bad")):
            pass
    ids = [one.run.id for one in recorded]
    assert ids[::2] == ids[1::2], "two trackers of a start have one id"
    first, copy = ids[0], ids[4]
    assert ids[::2] == [first, first, copy, copy, first]
    assert first != copy
    assert [one.run.name for one in recorded[::2]] == ["run", "run", "copy", "copy", "run"]


def test_a_tracker_that_is_unknown_or_not_installed_is_refused(monkeypatch, tmp_path):
    with pytest.raises(UserError, match=r"trackers contains 'wandB'; did you mean 'wandb'\?"):
        TrainingConfig(trackers=("wandB",))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(UserError, match=r"^'mlflow' in training.trackers needs mlflow: pip install '\.\[mlflow\]'$"):
        train(tiny.config(training__trackers=("mlflow",)), tmp_path / "run")


def numbers(workdir):
    """What metrics.jsonl says: (step, name) -> number."""
    found = {}
    for record in tiny.metrics(workdir):
        for name, value in record.items():
            if isinstance(value, float | int) and name not in ("step", "epoch"):
                found[record["step"], f"{record['split']}/{name}"] = value
    return found


def trained_in_two_starts(workdir, tracker):
    for steps in (4, 8):
        train(tiny.config(training__max_steps=steps, training__trackers=(tracker,)), workdir)


@pytest.mark.drill
@pytest.mark.filterwarnings("ignore")
def test_mlflow_has_what_metrics_jsonl_has(tmp_path):
    pytest.importorskip("mlflow", reason="needs the extra [mlflow]")
    folder = tmp_path / "run"
    trained_in_two_starts(folder, "mlflow")
    expected = numbers(folder)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{folder}/mlflow.db")
    [run] = client.search_runs([client.get_experiment_by_name(trackers.PROJECT).experiment_id])
    assert run.data.params["model.dropout"] == "0.1"
    assert run.info.status == "FINISHED"
    names = {name for _, name in expected}
    found = {(m.step, name): m.value for name in names for m in client.get_metric_history(run.info.run_id, name)}
    assert expected == pytest.approx(found)


@pytest.mark.drill
@pytest.mark.filterwarnings("ignore")
def test_wandb_gets_what_metrics_jsonl_has_and_continues_its_run(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="needs the extra [wandb]")
    found, log = {}, wandb.Run.log

    def recorded(run, values):
        found.update({(values["step"], name): value for name, value in values.items() if name != "step"})
        log(run, values)

    monkeypatch.setattr(wandb.Run, "log", recorded)
    trained_in_two_starts(tmp_path / "run", "wandb")
    expected = numbers(tmp_path / "run")
    assert expected == pytest.approx({key: found.get(key) for key in expected})
    starts = [path.name for path in (tmp_path / "run" / "wandb").glob("offline-run-*")]
    assert len({name.rpartition("-")[2] for name in starts}) == 1 < len(starts)
