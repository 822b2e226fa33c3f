"""Checkpoints as they are written: which stay, how arrays are laid out, what happens on a full disk."""

import contextlib
import errno
import json
import math
import os
import random
import re
import subprocess
import sys
import textwrap
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from convs2s_jax.core.checksums import seal
from convs2s_jax.core.errors import UserError
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.checkpoints import checkpoint, digest, restoring
from convs2s_jax.training.run.selection import best_of
from convs2s_jax.training.step import TrainState
from tests import tiny
from tests.checkpoints import ABSTRACT, ACCEPT, assert_bitwise, position, restore, restore_params, save, state


def test_last_and_best_are_kept_also_by_a_later_run(tmp_path):
    folder = tmp_path / "checkpoints"
    assert save(folder, {10: 1.0, 20: 3.0, 30: None, 40: 2.0}, keep=2) == [10, 30, 40]
    assert save(folder, {50: None}, keep=2) == [10, 40, 50]
    assert save(folder, {60: 0.5, 70: None, 80: 4.0}, keep=2) == [60, 70, 80]


def test_a_loss_that_is_not_finite_is_never_the_best(tmp_path):
    assert save(tmp_path / "a" / "checkpoints", {10: math.nan, 20: 5.0, 30: None, 40: None}, keep=1) == [20, 40]
    assert save(tmp_path / "b" / "checkpoints", {10: 5.0, 20: math.inf, 30: None, 40: None}, keep=1) == [10, 40]


def test_a_step_saved_before_its_validation_gets_its_scores_and_stays_as_it_is(folder):
    def content():
        return {path: path.read_bytes() for path in (folder / "40").rglob("*") if path.is_file()}

    save(folder, {40: None})
    before = content()
    save(folder, {40: 0.5})
    assert content() == before
    with checkpoint.Checkpoints(folder, keep=3) as checkpoints:
        assert best_of(checkpoints.scores, checkpoints.all_steps(), "loss") == 40


def test_damaged_scores_are_refused_and_without_them_the_newest_checkpoint_is_used(folder):
    path, asked = folder.with_name(run_folder.SCORES), {"step": None, "metric": "loss", "check": ACCEPT}
    path.write_text(path.read_text().replace("2.0", "0.5"))
    sentence = rf"^{path} is damaged \(its checksum does not match its content\): restore it, or delete it; then "
    for read in (lambda: restore_params(folder, ABSTRACT.params, **asked, tell=pytest.fail), lambda: save(folder, {})):
        with pytest.raises(UserError, match=sentence):
            read()
    path.unlink()
    _, where = restore_params(folder, ABSTRACT.params, **asked, tell=pytest.fail)
    assert where["step"] == 30


def test_the_scores_of_a_run_of_the_version_before_are_in_its_positions(folder):
    for step, loss in ((10, 1.0), (20, 3.0)):
        path = folder / str(step) / "position" / "metadata"
        record = json.loads(path.read_text())
        content = {name: value for name, value in record.items() if name != "digests"} | {"scores": {"loss": loss}}
        digests = {name: value for name, value in record["digests"].items() if name != "checksum"}
        digests["position"] = digest.digest_of_record(content)
        path.write_text(json.dumps({**content, "digests": seal(digests)}))
    folder.with_name(run_folder.SCORES).unlink()
    assert save(folder, {40: 2.0}, keep=1) == [10, 40]


def test_arrays_laid_out_over_eight_devices_have_the_same_digest_and_come_back_so(tmp_path):
    assert len(jax.devices()) == 8
    layout = NamedSharding(Mesh(np.array(jax.devices()), ("d",)), PartitionSpec(None, "d"))
    one = {"w": jnp.asarray(np.random.default_rng(0).normal(size=(16, 24)), jnp.float32)}
    spread = jax.device_put(one, layout)
    assert digest.digest(spread) == digest.digest(one)

    folder = tmp_path / "checkpoints"
    with checkpoint.Checkpoints(folder, keep=1) as checkpoints:
        checkpoint.save(checkpoints, TrainState(params=one, optimizer=one, step=jnp.int32(1)), {})
        checkpoint.wait(checkpoints)
        target = {"w": jax.ShapeDtypeStruct((16, 24), jnp.float32, sharding=layout)}
        abstract = TrainState(params=target, optimizer=target, step=ABSTRACT.step)
    found = restoring.restore(folder, abstract, check=ACCEPT, tell=pytest.fail)
    assert found[0].params["w"].sharding.is_equivalent_to(layout, 2)
    assert_bitwise(found[0].params, one)


ODD = (
    "[a] [!a] * ** ? {a,b} % %2F ~ : gs: # - --x e\u0301 \u00e9 \U0001f600 \u200b \u202e \\ ' \" $HOME `id` ; & | < .a"
)
ODD += f" {'n' * 150} checkpoints ocdbt.process_0 a.orbax-checkpoint-tmp \udcff"
PARTS = [*ODD.split(" "), " ", "\n", "\t", "\x1b[31m"]


@pytest.mark.parametrize("tries", [pytest.param(200, marks=pytest.mark.drill), 0])
def test_in_a_folder_of_any_name_a_checkpoint_comes_back(tmp_path, tries, tally):
    rng, losses = random.Random(1), 0
    drawn = ["".join(rng.choices(PARTS, k=rng.randint(1, 4)))[:80] for _ in range(tries)]
    names = drawn or ["[a]", "**", "\\", "gs:", "\u00e9\udcff"]
    for i, name in enumerate(names):
        folder = tmp_path / str(i) / name / "checkpoints"
        save(folder, {10: 1.0})
        found, left, told = restore(folder)
        losses += (left, told) != ([10], [])
        assert_bitwise(found[0], state(10))
    tally(tries=len(names), losses=losses)


FULL_DISK = """
    import resource, signal, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from convs2s_jax.core.guard import guard
    from convs2s_jax.training.run.checkpoints import checkpoint
    from tests.checkpoints import position, state

    def train():
        with checkpoint.Checkpoints(Path(sys.argv_folder), keep=1) as checkpoints:
            # a write beyond the limit fails, as on a full disk
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            checkpoint.save(checkpoints, state(40), position(40), scores={"loss": 0.5})
            checkpoint.wait(checkpoints)
            print("not reached")

    sys.argv_folder = sys.argv[2]
    guard(train, program="train.py")
"""


def test_a_save_that_cannot_be_written_is_one_sentence_and_leaves_the_last_one_whole(folder):
    command = [sys.executable, "-c", textwrap.dedent(FULL_DISK), str(tiny.ROOT), str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.stdout == ""
    assert ended.returncode == 2, ended.stderr
    good = "the last good one is step 30"
    # Orbax's threads log their own errors at the same time: before it, after it, or between it and its line's end
    sentence = rf"train\.py: {folder}: the checkpoint of step 40 could not be written \(.*\); {good}\. Free disk space"
    assert len(re.findall(sentence, ended.stderr)) == 1
    assert ended.stderr.count("train.py: ") == 1
    found, left, told = restore(folder)
    assert (left, told) == ([10, 20, 30], [])
    assert_bitwise(found[0], state(30))


@pytest.mark.parametrize("kind", [KeyboardInterrupt, OSError])
def test_an_error_waits_for_a_save_in_progress(folder, kind):
    with contextlib.suppress(kind), checkpoint.Checkpoints(folder, keep=9) as checkpoints:
        checkpoint.save(checkpoints, state(40), position(40), scores={"loss": 2.0})
        raise kind
    assert max(run_folder.finished(folder)) == 40


def test_a_checkpoint_that_is_a_link_stays_and_others_go(folder):
    """Each save failed, because it could not be removed."""
    (folder / "10").rename(folder.parent / "elsewhere")
    (folder / "10").symlink_to("../elsewhere")
    assert save(folder, {40: None, 50: None}, keep=1) == [10, 20, 50]
    assert (folder.parent / "elsewhere" / "position").is_dir()


def test_a_damaged_checkpoint_is_put_aside_beside_others(folder):
    (folder / "20.damaged").mkdir()
    (folder / "20.damaged" / "notes").touch()
    checkpoint.put_aside(folder / "20")
    assert (folder / "20.damaged" / "notes").exists()
    assert (folder / "20-.damaged" / "position").is_dir()


def test_a_save_that_failed_is_known_at_the_next_report_by_its_own_step(folder, monkeypatch):
    go, failed = threading.Event(), threading.Event()

    def fail(*_):
        go.wait(60)
        failed.set()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def look_until_it_failed(checkpoints):
        for _ in range(2000):  # 20 s and more
            checkpoint.check(checkpoints)
            time.sleep(0.01)

    with contextlib.suppress(OSError), checkpoint.Checkpoints(folder, keep=9) as checkpoints:
        monkeypatch.setattr(ocp.StandardCheckpointHandler, "finalize", fail)
        checkpoint.save(checkpoints, state(40), position(40))
        checkpoint.check(checkpoints)  # it does not wait
        assert not failed.is_set()
        go.set()
        with pytest.raises(UserError, match=r"step 40 could not be written \(No space .*the last good one is step 30"):
            look_until_it_failed(checkpoints)
        checkpoint.save(checkpoints, state(50), position(50))
        with pytest.raises(UserError, match="the checkpoint of step 50 could not be written"):
            checkpoint.save(checkpoints, state(60), position(60))
