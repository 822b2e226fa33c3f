"""Checkpoints by the clock: `training.save_every_minutes`."""

import pytest

from convs2s_jax.training.run import session
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.processes import distributed
from convs2s_jax.training.run.session import SaveClock
from tests import tiny


class Time:
    """A clock that is moved by hand."""

    def __init__(self, monkeypatch):
        self.now = 1000.0
        monkeypatch.setattr(session.time, "monotonic", lambda: self.now)


def test_a_save_is_due_when_the_minutes_since_the_last_one_have_passed(monkeypatch):
    time = Time(monkeypatch)
    clock = SaveClock(2.5)
    answers = []
    for moment in (1149.0, 1150.0, 1160.0):
        time.now = moment
        answers.append(clock.due())
    clock.restart()
    time.now += 149.0
    assert [*answers, clock.due()] == [False, True, True, False]


@pytest.mark.parametrize("answer", [True, False])
def test_the_clock_of_process_0_decides(monkeypatch, answer):
    """Whatever this process has measured."""
    time, asked = Time(monkeypatch), []
    monkeypatch.setattr(distributed, "from_primary", lambda flag: asked.append(flag) or answer)
    clock = SaveClock(1.0)
    time.now += 0.0 if answer else 3600.0
    assert clock.due() is answer
    assert asked == [not answer]


@pytest.mark.drill
def test_a_run_saves_at_the_first_report_after_the_time(tmp_path, monkeypatch):
    """Updates of 10 s and a report after every second one: 30 s are over at steps 4 and 8."""
    clock, due = Time(monkeypatch), SaveClock.due

    def after_two_updates(self):
        clock.now += 20.0
        return due(self)

    monkeypatch.setattr(SaveClock, "due", after_two_updates)
    options = {"training__save_every_minutes": 0.5, "training__keep": 9, "training__validate_every": 100}
    train(tiny.config(**options, training__max_steps=9), tmp_path)
    saved = sorted(int(path.name) for path in (tmp_path / "checkpoints").iterdir())
    assert saved == [4, 8, 9]
