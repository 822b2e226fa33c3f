"""Reading beside a training that replaces its checkpoints: a whole one, or the next; never a damaged one."""

import itertools
import shutil
import subprocess
import sys
import threading
import time

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.training.run.checkpoints import checkpoint, position_file, restoring
from convs2s_jax.training.run.locks.lock import locked
from convs2s_jax.translation.translator import load
from tests import processes, tiny
from tests.checkpoints import ABSTRACT, ACCEPT, assert_bitwise, position, save, state
from tests.locks import StoppedClock


def read(folder, step=None, tell=pytest.fail, items=("params", "optimizer")):
    """Items of the best checkpoint, compared with what was saved; its step."""
    abstract = {"params": ABSTRACT.params, "optimizer": ABSTRACT.optimizer}
    asked = {item: abstract[item] for item in items}
    found, where = restoring.restore_items(folder, asked, step=step, metric="loss", check=ACCEPT, tell=tell)
    saved = state(where["step"])
    assert_bitwise(found, {item: getattr(saved, item) for item in items})
    return where["step"]


def meanwhile(monkeypatch, module, name, action):
    """Call `action` once, when a function is first called."""
    real, first = getattr(module, name), [True]

    def called(*args, **options):
        if first.pop() if first else False:
            action()
        return real(*args, **options)

    monkeypatch.setattr(module, name, called)


def removed(folder):
    """The training removes its best checkpoint, as it has a better one."""
    shutil.rmtree(folder / "20")


def removed_slowly(folder):
    def rest():
        time.sleep(0.2)
        shutil.rmtree(folder / "20")

    shutil.rmtree(folder / "20" / "optimizer")
    threading.Thread(target=rest).start()


def written_again(folder):
    """As `checkpoint.save` does for a checkpoint that was saved before its validation."""
    (folder / "20").rename(folder / "20.before")


@pytest.mark.parametrize(("action", "expected"), [(removed, 30), (removed_slowly, 30), (written_again, 20)])
@pytest.mark.parametrize("when", [(position_file, "read"), (restoring, "_read_arrays")], ids=["position", "arrays"])
def test_a_checkpoint_that_goes_while_it_is_read_is_not_damaged(folder, monkeypatch, action, expected, when):
    with locked(folder.parent):
        meanwhile(monkeypatch, *when, lambda: action(folder))
        assert read(folder) == expected


def test_the_earlier_copy_of_a_checkpoint_that_is_written_again_counts(folder):
    (folder / "20").rename(folder / "20.before")
    (folder / "20.orbax-checkpoint-tmp").mkdir()
    assert read(folder) == 20
    assert read(folder, step=20) == 20


def test_a_step_that_is_asked_for_and_goes_is_missing_not_damaged(folder, monkeypatch):
    meanwhile(monkeypatch, restoring, "_read_arrays", lambda: removed(folder))
    with pytest.raises(UserError, match=r"has no checkpoint of step 20; it has 10, 30$"):
        read(folder, step=20)


def test_what_stays_as_it_is_is_damaged_also_beside_a_training(folder, monkeypatch):
    monkeypatch.setattr(restoring, "SETTLED", 0.2)
    shutil.rmtree(folder / "20" / "params")  # a removal that a kill has cut short
    told = []
    with locked(folder.parent):
        assert read(folder, tell=told.append) == 30
    assert len(told) == 1
    assert told[0].startswith("the checkpoint of step 20 is damaged (")


def test_a_process_that_is_stopped_meanwhile_does_not_miss_the_removal(folder, monkeypatch):
    """Each of its short waits takes as long as the whole watch; what was read begins to go in the third."""
    clock = StoppedClock(restoring.SETTLED, {3: lambda: removed(folder)})
    monkeypatch.setattr(restoring, "time", clock)
    with locked(folder.parent):
        assert restoring.is_replaced(folder / "20", restoring.entries(folder / "20"))
    assert clock.slept == 3


def test_checkpoints_that_are_replaced_without_an_end_are_given_up_in_a_sentence(folder, monkeypatch):
    real = restoring._read_arrays

    def always_gone(place, placed):
        (place.parent / f"new {len(list(place.parent.iterdir()))}").touch()
        real(place.with_name("none"), placed)

    monkeypatch.setattr(restoring, "_read_arrays", always_gone)
    monkeypatch.setattr(restoring, "LISTINGS", 3)
    with pytest.raises(UserError, match=r"faster than they can be read; decode from a copy of the workdir, or train"):
        read(folder)


@pytest.mark.drill
def test_reading_beside_a_fast_rotation_always_finds_a_whole_checkpoint(tmp_path, tally):
    folder, stop = tmp_path / "checkpoints", threading.Event()
    save(folder, {1: None}, keep=1)

    def rotate():
        with locked(tmp_path), checkpoint.manager(folder, keep=1) as checkpoints:
            for step in itertools.count(2):
                if stop.is_set():
                    return
                checkpoint.save(checkpoints, state(step), position(step), scores={"loss": 1 / step})
                checkpoint.wait(checkpoints)

    thread, tries, losses, steps = threading.Thread(target=rotate), 300, [], set()
    thread.start()
    try:
        for i in range(tries):
            try:
                steps.add(read(folder, tell=losses.append, items=("params", "optimizer")[: 1 + i % 2]))
            except Exception as error:
                losses.append(repr(error))
    finally:
        stop.set()
        thread.join()
    print(losses, len(steps))  # noqa: T201
    assert len(steps) > 20
    tally(tries=tries, losses=len(losses))


@pytest.mark.drill
def test_decoding_beside_a_real_training_that_keeps_one_checkpoint(tmp_path, tally):
    options = {"training__max_steps": 100_000, "training__save_every": 1, "training__keep": 1}
    options |= {"training__validate_every": 100_000}  # no best one stays
    config, workdir = tiny.config_file(tmp_path, **options), tmp_path / "run"
    steps, tries, losses = [], 60, []
    with processes.launched(config, workdir, 1, [[]], [{}]) as training:
        processes.wait_for_step(training, workdir, 1)
        for _ in range(tries):
            try:
                steps.append(load(workdir, tell=losses.append).steps[0][0])
            except Exception as error:
                losses.append(repr(error))
        command = [sys.executable, "decode.py", f"--workdir={workdir}", "--input=-"]
        for _ in range(5):
            ended = subprocess.run(command, input="One\n", cwd=tiny.ROOT, capture_output=True, text=True, check=False)
            if ended.returncode or "damaged" in ended.stderr or "Traceback" in ended.stderr:
                losses.append(ended.stderr)
        assert training[0].popen.poll() is None, training[0].told
    print(losses, steps)  # noqa: T201
    assert len(set(steps)) > 10
    assert steps == sorted(steps)
    tally(tries=tries + 5, losses=len(losses))
