"""Checkpoints by the clock: `training.save_every_minutes`."""

from convs2s_jax.training.run import saving
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.saving import Saves
from tests import tiny


class Time:
    """A clock that is moved by hand."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(saving.time, "monotonic", lambda: self.now)


def test_a_run_saves_at_the_first_report_after_the_time(tmp_path, monkeypatch):
    """Updates of 10 s and a report after every second one: 30 s are over at steps 4 and 8."""
    clock, due = Time(monkeypatch), Saves.due

    def after_two_updates(self):
        clock.now += 20.0
        return due(self)

    monkeypatch.setattr(Saves, "due", after_two_updates)
    options = {"training__save_every_minutes": 0.5, "training__keep": 9, "training__validate_every": 100}
    train(tiny.config(**options, training__max_steps=9), tmp_path)
    saved = sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir())
    assert saved == [4, 8, 9]
