"""The best checkpoint by the score that `training.best_metric` names, and the end for want of a better one."""

import re

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.training.run import run_folder, selection
from convs2s_jax.training.run.checkpoints import checkpoint, position_file
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.selection import Best
from convs2s_jax.translation.translator import load
from tests import tiny
from tests.checkpoints import ABSTRACT, ACCEPT, position, restore_params, state


def seen(metric, values):
    """(waiting, step of the best) after each validation."""
    best, found = Best(), []
    for step, value in enumerate(values, start=1):
        best = selection.validated(best, metric, {"other": -1.0, metric: value}, step=step)
        found.append((best.waiting, best.step))
    return found


def test_a_lower_loss_and_a_higher_score_are_better():
    nan = float("nan")
    assert seen("loss", [3.0, 2.0, 2.0, 2.5, 1.0]) == [(0, 1), (0, 2), (1, 2), (2, 2), (0, 5)]
    assert seen("bleu", [3.0, 2.0, 3.0, 3.5, 0.0]) == [(0, 1), (1, 1), (2, 1), (0, 4), (1, 4)]
    assert seen("ter", [60.0, 120.0, 45.5, 45.5]) == [(0, 1), (1, 1), (0, 3), (1, 3)]
    assert seen("loss", [nan, float("inf"), 4.0, nan]) == [(1, 0), (2, 0), (0, 3), (1, 3)]


def test_patience_ends_training_with_a_reason():
    best = Best("bleu", 31.25, step=40, waiting=3)
    assert selection.ended(best, "bleu", 4) == selection.ended(best, "bleu", None) == ""
    assert selection.ended(best, "bleu", 3) == (
        "training.patience is 3: no scheduled validation since step 40 had a higher bleu than its 31.2500"
    )
    assert selection.ended(Best(waiting=2), "loss", 2) == "training.patience is 2: no validation had a finite loss"


def test_the_checkpoint_with_the_highest_score_stays_and_is_read(tmp_path):
    scores = {10: (3.0, 20.0), 20: (2.0, 31.0), 30: (1.0, 31.0), 40: (0.5, 30.0), 50: None}
    folder = tmp_path / "checkpoints"
    with checkpoint.Checkpoints(folder, keep=1, metric="bleu") as checkpoints:
        for step, found in scores.items():
            measured = None if found is None else {"loss": found[0], "bleu": found[1]}
            checkpoint.save(checkpoints, state(step), position(step), scores=measured)
        checkpoint.wait(checkpoints)
        assert checkpoints.all_steps() == [20, 50]  # of equal ones the first, as patience counts
    for metric, best in (("bleu", 20), ("loss", 20), ("chrf", 20)):  # nobody measured the last: by the loss
        _, read = restore_params(folder, ABSTRACT.params, step=None, metric=metric, check=ACCEPT, tell=pytest.fail)
        assert read["step"] == best


STILL = {"training__schedule": {"kind": "fixed", "rates": [1e-30]}, "training__validate_every": 1}
"""Updates that change nothing: no validation is better than the first."""


def test_a_run_ends_after_its_patience_also_when_it_was_stopped_in_between(tmp_path, capsys):
    workdir = tmp_path / "run"
    ended = "training.patience is 3: no scheduled validation since step 1 had a lower loss than its"
    train(tiny.config(**STILL, training__patience=3, training__max_steps=3), workdir)
    train(tiny.config(**STILL, training__patience=3), workdir)
    assert f"stopped at step 4, epoch 1: {ended}" in capsys.readouterr().err
    train(tiny.config(**STILL, training__patience=3), workdir)  # over, as its checkpoint says
    assert f"stopped at step 4, epoch 1: {ended}" in capsys.readouterr().err
    train(tiny.config(**STILL, training__patience=5), workdir)
    assert "stopped at step 6, epoch 1: training.patience is 5" in capsys.readouterr().err


def test_a_run_keeps_and_reads_what_is_best_by_its_metric(tmp_path):
    workdir, metric = tmp_path / "run", "chrf"
    scores = {"training__validate_bleu": True, "training__best_metric": metric, "training__metrics": ("chrf",)}
    train(tiny.config(**scores, training__validate_every=2, training__keep=1), workdir)
    valid = {line["step"]: line for line in tiny.metrics(workdir) if line["split"] == "valid"}
    known = checkpoint.known_scores(run_folder.checkpoints(workdir))
    for step in run_folder.finished(run_folder.checkpoints(workdir)):
        assert known[step] == {name: valid[step][name] for name in ("loss", metric)}
    best = max(valid, key=lambda step: (valid[step][metric], -step))
    assert best != min(valid, key=lambda step: valid[step]["loss"])
    assert position_file.read(workdir / "checkpoints" / "8")["best"]["metric"] == metric
    assert load(workdir, tell=pytest.fail).steps == ((best,),)
    (test,) = (line for line in tiny.metrics(workdir) if line["split"] == "test")
    assert test["step"] == best


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        (
            {"best_metric": "bleu"},
            "training.best_metric is 'bleu', but training.validate_bleu is False: set it to True",
        ),
        (
            {"best_metric": "belu", "validate_bleu": True},
            "training.best_metric is 'belu', which validations of this run do not measure; did you mean 'bleu'?",
        ),
        (
            {"best_metric": "exact_match", "validate_bleu": True, "metrics": ("rouge",)},
            "which validations of this run do not measure; available: loss, rouge1, rouge2, rougel",
        ),
    ],
)
def test_what_validations_do_not_measure_is_refused(values, sentence):
    with pytest.raises(UserError, match=re.escape(sentence)):
        tiny.config(**{f"training__{name}": value for name, value in values.items()})
