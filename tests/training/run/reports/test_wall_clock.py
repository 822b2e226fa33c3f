"""Every second of a run belongs to one activity."""

import pytest

from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.reports import measures
from convs2s_jax.training.run.reports.measures import ACTIVITIES, WallClock
from tests import tiny


def test_seconds_are_counted_once_whatever_is_within_what(monkeypatch):
    """Also where an error ends an activity."""
    now = iter([0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0])
    monkeypatch.setattr(measures.time, "perf_counter", lambda: next(now))
    clock = WallClock()

    def interrupted():
        with clock.during("compute"):
            with clock.during("validation"):
                pass
            clock.reassign("input", 3.0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        interrupted()
    first = clock.take()
    assert first == {"compute": 7.0, "input": 3.0, "validation": 4.0, "checkpoint": 0.0, "compile": 0.0, "other": 17.0}
    assert clock.take() == dict.fromkeys(ACTIVITIES, 0.0) | {"other": 32.0}


def test_the_account_is_of_the_whole_time(monkeypatch):
    now = iter([0.0, 10.0, 40.0, 40.0, 50.0])
    monkeypatch.setattr(measures.time, "perf_counter", lambda: next(now))
    clock = WallClock()
    with clock.during("compute"):
        pass
    clock.take()
    assert clock.account() == (
        "50.0 s, of which compute 60.0 %, input 0.0 %, validation 0.0 %, checkpoint 0.0 %, compile 0.0 %, other 40.0 %"
    )


@pytest.mark.usefixtures("own_programs")
def test_the_shares_of_each_report_and_the_account_of_a_run_add_up_to_one(tmp_path, capsys):
    options = {"training__max_steps": 14, "training__validate_every": 4}
    train(tiny.config(**options, training__save_every=3), tmp_path)
    lines = [line for line in tiny.metrics(tmp_path) if line["split"] == "train"]
    for line in lines:
        shares = [line[f"{name}_share"] for name in ACTIVITIES]
        assert sum(shares) == pytest.approx(1.0)
        assert min(shares) >= 0.0
    assert lines[0]["compile_share"] > 0
    assert lines[0]["other_share"] > 0  # the start
    assert all(line["compile_share"] == 0 for line in lines[1:])  # one shape
    assert lines[2]["checkpoint_share"] > 0  # of step 3
    assert all("mfu" not in line for line in lines)  # the peak of a CPU is not known
    after = [line["validation_share"] > 0 for line in lines]
    assert after == [line["step"] in (6, 9, 14) for line in lines]  # in the line after that of its step
    (account,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("time: ")]
    assert all(f"{name} " in account for name in ACTIVITIES)
