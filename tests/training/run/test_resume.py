"""A run that ends early, however it ends, continues to the very parameters of the run that did not."""

import os
import re
import signal

import jax
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.training import schedule
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.programs import Programs
from convs2s_jax.training.run.reports import records
from convs2s_jax.training.run.tasks import translation_task as translating
from tests import tiny

STEPS = 12
OPTIONS = {"training__max_steps": STEPS, "training__save_every": 1, "training__keep": 3}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("undisturbed")
    train(tiny.config(**OPTIONS), workdir)
    return tiny.digests(workdir, STEPS)


def test_two_halves_equal_the_whole(tmp_path, undisturbed):
    # 5 is within an epoch: order, dropout and momentum all have to be taken up where they were
    train(tiny.config(**{**OPTIONS, "training__max_steps": 5}), tmp_path)
    train(tiny.config(**OPTIONS), tmp_path)
    assert tiny.digests(tmp_path, STEPS) == undisturbed
    steps = [line["step"] for line in tiny.metrics(tmp_path) if line["split"] == "train"]
    assert steps == sorted(set(steps))


def test_the_last_update_of_an_epoch_takes_the_batches_that_are_left(tmp_path):
    """Also where they are fewer than `accumulate`."""
    train(tiny.config(data__batch__accumulate=1000, training__max_epochs=2), tmp_path)
    steps = [(line["epoch"], line["step"]) for line in tiny.metrics(tmp_path) if line["split"] == "train"]
    assert steps[-1] == (2, 2)


def test_each_update_has_a_dropout_key_of_its_own(tmp_path, monkeypatch):
    keys, update = [], Programs.update

    def recorded(programs, state, batches, rate, key):
        keys.append(jax.random.key_data(key).tolist())
        return update(programs, state, batches, rate, key)

    monkeypatch.setattr(Programs, "update", recorded)
    train(tiny.config(training__max_steps=5), tmp_path)
    assert len(keys) == len({*map(tuple, keys)}) == 5


@pytest.mark.drill
def test_a_signal_within_a_validation_leaves_it_for_later(tmp_path, undisturbed, monkeypatch):
    translate = translating.translate

    def signalled(*args, **kwargs):
        os.kill(os.getpid(), signal.SIGTERM)
        return translate(*args, **kwargs)

    options = {**OPTIONS, "training__validate_bleu": True}
    monkeypatch.setattr(translating, "translate", signalled)
    train(tiny.config(**options), tmp_path)
    lines = tiny.metrics(tmp_path)
    assert lines[-1]["split"] == "train"
    assert lines[-1]["step"] < STEPS
    monkeypatch.undo()
    with (tmp_path / records.METRICS).open("a") as file:  # as by a start that is killed before it saves the loss
        file.write(records.metrics_line({**lines[-1], "split": "valid"}))
    train(tiny.config(**options), tmp_path)
    valid = [line["step"] for line in tiny.metrics(tmp_path) if line["split"] == "valid"]
    assert valid.count(lines[-1]["step"]) == 1  # made up for
    arrays = {name: tiny.digests(tmp_path, STEPS)[name] for name in ("params", "optimizer")}
    assert arrays == {name: undisturbed[name] for name in arrays}  # the other run's position has no BLEU


def test_a_run_continues_at_the_position_at_which_it_stopped(tmp_path, capfd):
    """Between two epochs, one message once named the last epoch and the other the next."""
    train(tiny.config(training__max_epochs=1, training__max_steps=None), tmp_path)
    [position] = re.findall(r"stopped at (step \d+, epoch 1): training.max_epochs is 1", capfd.readouterr().err)
    train(tiny.config(training__max_epochs=1, training__max_steps=None), tmp_path)
    assert f"continuing at {position}\n" in capfd.readouterr().err


def test_a_loss_that_is_not_finite_names_its_step(tmp_path, monkeypatch):
    options = {"training__clip": 0.0, "training__save_every": 1}
    train(tiny.config(training__max_steps=2, **options), tmp_path)
    before = tiny.digests(tmp_path, 2)
    monkeypatch.setattr(schedule, "rate", lambda *_, step, **__: 1e30 if step >= 4 else 0.25)
    # the update of step 4 spoils the parameters, so the loss of step 5 shows it; no checkpoint holds them
    way_out = rf"--config.training.finetune_from={tmp_path} starts it from .*, step 2, where the loss .* was 4\.869$"
    with pytest.raises(UserError, match=rf"step 5: the loss is .*\. Use a lower learning rate or clip .*; {way_out}"):
        train(tiny.config(training__max_steps=8, **options), tmp_path)
    assert tiny.digests(tmp_path, 2) == before
    [last] = (tmp_path / "train.log").read_text().splitlines()[-1:]
    assert re.search(r"stopped at step \d, epoch 1: step 5: the loss is ", last)
    with pytest.raises(UserError, match=r"; start it anew, since no checkpoint of this run was validated, and"):
        train(tiny.config(training__max_steps=8, **options), tmp_path / "other")


def test_skipped_steps_follow_each_other_from_one_epoch_and_one_start_to_the_next(tmp_path, monkeypatch):
    """An epoch has ten updates, fewer than may be skipped."""
    options = {"training__clip": 0.0, "training__skip_bad_steps": 12, "training__validate_every": 100}
    real = schedule.rate
    monkeypatch.setattr(schedule, "rate", lambda *a, step, **k: 1e30 if step == 2 else real(*a, step=step, **k))
    for bound in (8, 14):
        train(tiny.config(**options, training__max_steps=bound), tmp_path)
    with pytest.raises(UserError, match=r"^step 15: the loss is .* after 12 skipped updates\. Use "):
        train(tiny.config(**options, training__max_steps=20), tmp_path)
    skipped = [line["skipped"] for line in tiny.metrics(tmp_path) if line["split"] == "train"]
    assert sum(skipped) >= 10
