"""Checkpoints: what was saved comes back bit by bit, and what is damaged is never used."""

import gc
import os
import re
import shutil
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from convs2s_jax.core.errors import UserError
from convs2s_jax.training import checkpoint, digest, restoring
from convs2s_jax.training.step import TrainState

# When one array cannot be read, Orbax closes its event loop and leaves the other reads running: their coroutines go to
# the garbage collector, and what they have read comes to a closed loop (reported as of no object).
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. (None|<coroutine object _read_):pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(autouse=True)
def _coroutines_end_within_their_test():
    yield
    gc.collect()


ACCEPT = lambda _: None  # noqa: E731


def state(step):
    rng = np.random.default_rng(step)
    params = {
        "w": jnp.asarray(rng.normal(size=(40, 50)), jnp.float32),
        "half": jnp.asarray(rng.normal(size=(5, 7)), jnp.bfloat16),
        "none": (),
    }
    moments = {"trace": jnp.asarray(rng.normal(size=(40, 50)), jnp.float32), "count": jnp.int32(step), "none": ()}
    return TrainState(params=params, optimizer=(moments, ()), step=jnp.int32(step))


ABSTRACT = jax.eval_shape(lambda: state(0))


def position(step):
    return {"epoch": step // 10, "schedule": {"rate": 0.25, "best": float("inf"), "stopped": ""}}


def save(folder, losses, *, keep=9):
    """Save a checkpoint for each (step, loss) under one manager; returns the steps that stay."""
    with checkpoint.manager(folder, keep=keep) as checkpoints:
        for step, loss in losses.items():
            checkpoint.save(checkpoints, state(step), position(step), loss=loss)
        checkpoint.wait(checkpoints, max(losses))
        return list(checkpoints.all_steps())


def restore(folder, abstract=ABSTRACT):
    """(what `restore` gives, steps left, sentences told)."""
    told = []
    with checkpoint.manager(folder, keep=9) as checkpoints:
        found = restoring.restore(checkpoints, abstract, check=ACCEPT, tell=told.append)
        return found, list(checkpoints.all_steps()), told


def assert_bitwise(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with checkpoints of steps 10, 20 and 30, of which 20 is the best; to be copied, not changed."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    assert save(folder, {10: 3.0, 20: 1.0, 30: 2.0}) == [10, 20, 30]
    return folder


@pytest.fixture
def folder(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "checkpoints")


def largest(folder, step):
    """The file of a checkpoint that holds most of its arrays."""
    files = [path for path in (folder / str(step) / "params").rglob("*") if path.is_file()]
    return max(files, key=lambda path: path.stat().st_size)


def test_last_and_best_are_kept_also_by_a_later_run(tmp_path):
    assert save(tmp_path, {10: 1.0, 20: 3.0, 30: None, 40: 2.0}, keep=2) == [10, 30, 40]
    assert save(tmp_path, {50: None}, keep=2) == [10, 40, 50]
    assert save(tmp_path, {60: 0.5, 70: None, 80: 4.0}, keep=2) == [60, 70, 80]


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_is_never_the_best(tmp_path, loss):
    assert save(tmp_path / "a", {10: loss, 20: 5.0, 30: None, 40: None}, keep=1) == [20, 40]
    assert save(tmp_path / "b", {10: 5.0, 20: loss, 30: None, 40: None}, keep=1) == [10, 40]
    assert save(tmp_path / "c", {10: loss, 20: None, 30: None}, keep=1) == [30]


def test_newest_comes_back_bit_by_bit(folder):
    (found, where), _, told = restore(folder)
    assert_bitwise(found, state(30))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(found))
    assert {name: where[name] for name in position(30)} == position(30)
    assert where["step"] == 30
    assert told == []


def test_a_step_that_is_there_already_is_not_written_again(folder):
    before = largest(folder, 30).read_bytes()
    save(folder, {30: None})
    assert largest(folder, 30).read_bytes() == before


def test_a_step_saved_before_its_validation_is_written_again_with_its_loss(folder):
    save(folder, {40: None})
    save(folder, {40: 0.5})
    with checkpoint.manager(folder, keep=3) as checkpoints:
        assert checkpoints.best_step() == 40
    (found, _), _, _ = restore(folder)
    assert_bitwise(found, state(40))


@pytest.mark.parametrize("new_is_whole", [False, True])
def test_a_run_that_ends_while_a_checkpoint_is_written_again_has_one_of_the_two(folder, new_is_whole):
    (folder / "30").rename(folder / f"30{checkpoint.BEFORE}")
    if new_is_whole:
        shutil.copytree(folder / f"30{checkpoint.BEFORE}", folder / "30")
    found, left, told = restore(folder)
    assert_bitwise(found[0], state(30))
    assert left == [10, 20, 30]
    assert told == []
    assert not any(folder.glob(f"*{checkpoint.BEFORE}"))


def test_an_empty_folder_has_nothing_to_restore(tmp_path):
    assert restore(tmp_path) == (None, [], [])


def flip_a_bit(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


DAMAGES = {
    "a bit flipped": flip_a_bit,
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "deleted": lambda path: path.unlink(),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_checkpoint_is_told_deleted_and_the_one_before_is_used(folder, kind):
    files = [path for path in (folder / "30").rglob("*") if path.is_file() and path.stat().st_size > 4000]
    assert len(files) == 2  # parameters and moments
    intact = {path: path.read_bytes() for path in files}
    copy = folder.with_name("copy")
    for path, data in intact.items():
        DAMAGES[kind](path)
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(folder, copy)
        path.write_bytes(data)
        (found, where), steps, told = restore(copy)
        assert_bitwise(found, state(20))
        assert where["epoch"] == 2
        assert steps == [10, 20]
        assert not (copy / "30").exists()
        assert len(told) == 1
        assert told[0].startswith("the checkpoint of step 30 is damaged (")
        assert told[0].endswith("); trying the one before")
        assert save(copy, {30: 2.0}) == [10, 20, 30]  # written anew
        assert_bitwise(restore(copy)[0][0], state(30))


def test_position_is_verified_too(folder):
    path = folder / "30" / "position" / "metadata"
    text = path.read_text(encoding="utf-8")
    assert text.count("0.25") == 1
    path.write_text(text.replace("0.25", "0.75"), encoding="utf-8")
    (found, _), steps, told = restore(folder)
    assert int(found.step) == 20
    assert steps == [10, 20]
    assert told == ["the checkpoint of step 30 is damaged (position is not what was saved); trying the one before"]


def test_a_value_that_the_files_own_checks_accept_is_found_by_its_digest(folder, monkeypatch):
    monkeypatch.setattr(restoring, "digest", lambda tree, **_: dict.fromkeys(digest.digest(tree), 1))
    with pytest.raises(UserError, match=r"none of the checkpoints \[10, 20, 30\] could be read"):
        restore(folder)


def test_where_all_are_damaged_none_is_deleted(folder):
    for step in (10, 20, 30):
        DAMAGES["cut"](largest(folder, step))
    with pytest.raises(UserError, match=rf"^{folder}: none of the checkpoints \[10, 20, 30\] could be read$"):
        restore(folder)
    assert all((folder / str(step)).is_dir() for step in (10, 20, 30))


def test_a_loss_that_cannot_be_read_is_named_with_a_way_out(folder):
    path = folder / "20" / "metrics" / "metrics"
    for text in ("", '{"los', '{"lost": 1.0}', "3"):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=rf"^{path} is damaged \(.*\): delete {path.parent}; the checkpoint can"):
            restore(folder)
    shutil.rmtree(path.parent)
    assert restore(folder)[1:] == ([10, 20, 30], [])


def test_another_model_is_named_by_its_paths(folder):
    other = ABSTRACT.replace(params={**ABSTRACT.params, "extra": {"b": ABSTRACT.params["w"]}})
    message = rf"^{folder}/30 is of another model: extra/b are not in both$"
    with pytest.raises(UserError, match=message):
        restore(folder, other)
    with pytest.raises(UserError, match=message):
        restoring.restore_params(folder, other.params, step=30, check=ACCEPT, tell=pytest.fail)
    assert (folder / "30").is_dir()


def test_another_format_is_refused(folder, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", checkpoint.FORMAT + 1)
    save(folder, {40: None})
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"/40 has checkpoint format 2, this version reads 1; see CHANGELOG.md$"):
        restore(folder)


def test_decoding_takes_the_best_or_the_step_asked_for(folder):
    for step, expected in ((None, 20), (10, 10), (30, 30)):
        params, where = restoring.restore_params(folder, ABSTRACT.params, step=step, check=ACCEPT, tell=pytest.fail)
        assert_bitwise(params, state(expected).params)
        assert where["step"] == expected


def test_decoding_passes_over_damage_and_deletes_nothing(folder):
    DAMAGES["cut"](largest(folder, 20))
    told = []
    params, where = restoring.restore_params(folder, ABSTRACT.params, step=None, check=ACCEPT, tell=told.append)
    assert where["step"] == 30  # the newest of the others
    assert_bitwise(params, state(30).params)
    assert len(told) == 1
    assert told[0].startswith("the checkpoint of step 20 is damaged (")
    assert (folder / "20").is_dir()
    with pytest.raises(UserError, match=r"none of the checkpoints \[20\] could be read"):
        restoring.restore_params(folder, ABSTRACT.params, step=20, check=ACCEPT, tell=told.append)


def test_decoding_without_a_checkpoint_says_what_there_is(folder, tmp_path):
    def ask(where, step=None):
        restoring.restore_params(where, ABSTRACT.params, step=step, check=ACCEPT, tell=pytest.fail)

    with pytest.raises(UserError, match=rf"^{folder} has no checkpoint of step 25; it has 10, 20, 30$"):
        ask(folder, 25)
    with pytest.raises(UserError, match=rf"none: there is no checkpoint here; .* train\.py --workdir={tmp_path}$"):
        ask(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=rf"empty holds no checkpoint yet; .* train\.py --workdir={tmp_path}$"):
        ask(tmp_path / "empty")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
def test_digest_changes_with_every_bit(dtype):
    values = np.asarray(jnp.asarray(np.random.default_rng(0).normal(0, 40, 6), "float32").astype(dtype))
    seen = {digest.digest({"x": values})["x"]}
    for bit in range(values.nbytes * 8):
        data = bytearray(values.tobytes())
        data[bit // 8] ^= 1 << bit % 8
        seen.add(digest.digest({"x": np.frombuffer(bytes(data), values.dtype)})["x"])
    assert len(seen) == 1 + values.nbytes * 8


@pytest.mark.parametrize("values", [[1.0, -1.0], [1.0, 2.0], [0.0, 1e-30]])
def test_digest_changes_when_two_values_are_exchanged(values):
    for distance in (1, 2, 256, 512):
        x = np.zeros(600, np.float32)
        x[3], x[3 + distance] = values
        exchanged = x.copy()
        exchanged[3], exchanged[3 + distance] = values[::-1]
        assert digest.digest(x) != digest.digest(exchanged)


def test_digest_changes_with_two_signs():
    x = np.arange(1, 9, dtype=np.float32)
    assert digest.digest(x) != digest.digest(x * np.array([1, -1, 1, 1, -1, 1, 1, 1], np.float32))


def test_digest_is_by_path():
    tree = {"a": {"b": jnp.ones(2)}, "c": (jnp.zeros(3), ()), "none": ()}
    assert list(digest.digest(tree)) == ["a/b", "c/0"]


@pytest.mark.parametrize("axes", [("d", None), (None, "d")])
def test_arrays_laid_out_over_eight_devices_have_the_same_digest_and_come_back_so(tmp_path, axes):
    assert len(jax.devices()) == 8
    layout = NamedSharding(Mesh(np.array(jax.devices()), ("d",)), PartitionSpec(*axes))
    one = {"w": jnp.asarray(np.random.default_rng(0).normal(size=(16, 24)), jnp.float32)}
    spread = jax.device_put(one, layout)
    assert digest.digest(spread) == digest.digest(one)

    with checkpoint.manager(tmp_path, keep=1) as checkpoints:
        checkpoint.save(checkpoints, TrainState(params=one, optimizer=one, step=jnp.int32(1)), {})
        checkpoint.wait(checkpoints, 1)
        target = {"w": jax.ShapeDtypeStruct((16, 24), jnp.float32, sharding=layout)}
        abstract = TrainState(params=target, optimizer=target, step=ABSTRACT.step)
        found = restoring.restore(checkpoints, abstract, check=ACCEPT, tell=pytest.fail)
    assert found[0].params["w"].sharding.is_equivalent_to(layout, 2)
    assert_bitwise(found[0].params, one)


FULL_DISK = """
    import resource, signal, sys
    from pathlib import Path
    sys.path.insert(0, sys.argv[1])
    from convs2s_jax.core.command_line import run
    from convs2s_jax.training import checkpoint
    from test_checkpoint import position, state

    def train(_):
        with checkpoint.manager(Path(sys.argv_folder), keep=1) as checkpoints:
            # a write beyond the limit fails, as on a full disk
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
            checkpoint.save(checkpoints, state(40), position(40), loss=0.5)
            checkpoint.wait(checkpoints, 40)
            print("not reached")

    sys.argv_folder = sys.argv[2]
    sys.argv = ["train.py"]
    run(train)
"""


@pytest.mark.parametrize("steps", [(10, 20, 30), ()])
def test_a_save_that_cannot_be_written_is_one_sentence_and_leaves_the_last_one_whole(folder, steps):
    if not steps:
        shutil.rmtree(folder)
        folder.mkdir()
    command = [sys.executable, "-c", textwrap.dedent(FULL_DISK), os.path.dirname(__file__), str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ended.stdout == ""
    assert ended.returncode == 2, ended.stderr
    good = "the last good one is step 30" if steps else "no earlier one exists"
    # Orbax's threads log their own errors at the same time: before it, after it, or between it and its line's end
    sentence = rf"train\.py: {folder}: the checkpoint of step 40 could not be written \(.*\); {good}\. Make room"
    assert len(re.findall(sentence, ended.stderr)) == 1
    assert ended.stderr.count("train.py: ") == 1
    found, left, told = restore(folder)
    assert left == list(steps)
    assert told == []
    if steps:
        assert_bitwise(found[0], state(30))
