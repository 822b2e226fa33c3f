"""Traces of a few updates."""

import gzip
import json

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.training.run.config import Traced, TrainingConfig
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.reports import measures
from convs2s_jax.training.run.reports.measures import WallClock
from tests import tiny


@pytest.fixture
def calls(monkeypatch):
    """What the profiler was asked for, with the number of updates done then."""
    made = []
    monkeypatch.setattr(measures.jax.profiler, "start_trace", lambda folder: made.append(("start", folder)))
    monkeypatch.setattr(measures.jax.profiler, "stop_trace", lambda: made.append(("stop",)))
    return made


@pytest.mark.parametrize(
    ("asked", "begin", "expected"),
    [
        (Traced(4, 2), 0, [4, 5]),
        (Traced(1, 1), 0, [1]),
        (Traced(6, 9), 5, [6, 7, 8]),  # the run ends before
        (Traced(4, 2), 4, []),
        (Traced(10, 2), 0, []),
        (None, 0, []),
    ],
)
def test_just_the_updates_asked_for_are_traced(calls, tmp_path, asked, begin, expected):
    told, traced = [], []
    with measures.Profile(asked, tmp_path, step=begin, tell=told.append, clock=WallClock()) as one:
        one.done(begin, None)
        for step in range(begin + 1, 9):
            if calls[-1:] == [("start", tmp_path)]:
                traced.append(step)
            one.done(step, None)
    assert traced == expected
    assert calls == ([("start", tmp_path), ("stop",)] if expected else [])
    why = "has already passed" if asked == Traced(4, 2) else "was not reached"
    past = f"training.profile begins at step {asked.first if asked else 0}, which {why}: nothing is traced"
    done = f"the trace of training.profile is in {tmp_path}"
    assert told == ([done] if expected else [past] if asked else [])


def test_the_results_of_earlier_updates_are_awaited_at_both_ends(calls, tmp_path):
    class Result:
        def block_until_ready(self):
            calls.append("awaited")

    with measures.Profile(Traced(2, 1), tmp_path, step=0, tell=print, clock=WallClock()) as one:
        for step in (1, 2, 3):
            one.done(step, Result())
    assert calls == ["awaited", ("start", tmp_path), "awaited", ("stop",)]


@pytest.mark.drill
def test_a_run_leaves_a_trace_that_names_its_programs_and_the_same_parameters(tmp_path):
    options = {"training__max_steps": 4, "training__validate_every": 100}
    train(tiny.config(**options), tmp_path / "plain")
    train(tiny.config(**options, training__profile="3:1"), tmp_path / "traced")
    [trace] = (tmp_path / "traced" / "profile").rglob("*.trace.json.gz")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    assert any("first" in event.get("name", "") for event in events)
    assert list((tmp_path / "traced" / "profile").rglob("*.xplane.pb"))
    assert tiny.digests(tmp_path / "plain", 4)["params"] == tiny.digests(tmp_path / "traced", 4)["params"]


@pytest.mark.parametrize(
    "text", ["5", "5:", ":5", "0:5", "5:0", "-1:5", "5:3:1", "a:b", "1.5:2", "5 : 3", "9999999999:1", "٣:1"]
)
def test_another_form_is_refused(text):
    message = f"^profile is '{text}': use STEP:STEPS, two integers of at least 1, such as 100:5$"
    with pytest.raises(UserError, match=message):
        TrainingConfig(profile=text)
