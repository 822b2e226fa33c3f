"""Work that is shared by processes is done in rounds, after each of which all can learn of a signal."""

from types import SimpleNamespace

import pytest

from convs2s_jax.training.run import validation
from convs2s_jax.training.run.processes import distributed, interrupts
from convs2s_jax.training.run.processes.interrupts import InterruptedWorkError, Interrupts
from convs2s_jax.training.run.tasks import translation_task
from tests import tiny


@pytest.fixture(params=[1, 2, 3], ids="processes {}".format)
def count(request, monkeypatch):
    """Number of processes."""
    monkeypatch.setattr(distributed.jax, "process_count", lambda: request.param)
    monkeypatch.setattr(distributed, "ROUND", 4)
    return request.param


@pytest.mark.parametrize("lines", [0, 1, 2, 8, 9, 24, 25])
def test_rounds_are_the_share_in_pieces_and_equally_many_everywhere(monkeypatch, count, lines):
    rounds = []
    for process in range(count):
        monkeypatch.setattr(distributed.jax, "process_index", lambda process=process: process)
        rounds.append(distributed.local_rounds(lines))
        assert [i for part in rounds[-1] for i in part] == list(range(process, lines, count))
        assert count == 1 or all(len(part) <= 4 for part in rounds[-1])
    assert {len(parts) for parts in rounds} == {len(rounds[0])}
    assert count > 1 or len(rounds[0]) <= 1  # one process notices a signal by itself, and its batches stay as they were


def test_all_processes_ask_equally_often_and_stop_after_the_round_of_a_signal(monkeypatch):
    """25 lines of two processes: 13 and 12, in rounds of 4. All learn of a signal when they ask for the third time."""
    made = []
    monkeypatch.setattr(distributed.jax, "process_count", lambda: 2)
    monkeypatch.setattr(distributed, "ROUND", 4)
    monkeypatch.setattr(distributed, "local", lambda _, params: params)
    monkeypatch.setattr(distributed, "own_devices", lambda _: None)
    monkeypatch.setattr(interrupts.multihost_utils, "reached_preemption_sync_point", lambda call: call == 3)
    monkeypatch.setattr(translation_task, "translate", lambda *args, **_: made.append(len(args[-1])) or [])
    split = SimpleNamespace(src=list(range(25)))
    run = SimpleNamespace(cfg=tiny.config(), vocabularies=SimpleNamespace(tgt=None))
    for process in (0, 1):
        monkeypatch.setattr(distributed.jax, "process_index", lambda process=process: process)
        with pytest.raises(InterruptedWorkError):
            validation.predict(run, None, None, split, name="valid 1", interrupts=Interrupts())
    assert made == [4, 4, 4] * 2
