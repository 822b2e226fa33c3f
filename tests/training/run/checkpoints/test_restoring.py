"""Checkpoints as they are read: what was saved comes back bit by bit, and what is damaged is never used.

Beside a training that replaces them: a whole one, or the next.
"""

import shutil
import threading
import time

import jax
import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.training.run.checkpoints import digest, position_file, restoring
from tests.checkpoints import ABSTRACT, ACCEPT, assert_bitwise, largest, position, restore, restore_params, save, state


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """What stays damaged for half a second is damaged."""
    monkeypatch.setattr(restoring, "SETTLED", 0.5)


def test_newest_comes_back_bit_by_bit(folder):
    (found, where), _, told = restore(folder)
    assert_bitwise(found, state(30))
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(found))
    assert {name: where[name] for name in position(30)} == position(30)
    assert where["step"] == 30
    assert told == []


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
        assert told[0].endswith(")")
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
    assert told == ["the checkpoint of step 30 is damaged (position is not what was saved)"]


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


@pytest.mark.parametrize("text", ['"params"', '"optimizer"', '"w"', '"checksum"', '"digests"'])
def test_a_damaged_name_in_the_position_is_a_damaged_checkpoint(folder, text):
    for step in (20, 30):
        path = folder / str(step) / "position" / "metadata"
        data = path.read_text(encoding="utf-8")
        assert text in data
        path.write_text(data.replace(text, text.upper()), encoding="utf-8")
    (found, _), left, told = restore(folder)
    assert_bitwise(found, state(10))
    assert left == [10]
    assert told == [f"the checkpoint of step {step} is damaged (position is not what was saved)" for step in (30, 20)]


def test_another_model_is_named_by_its_paths(folder):
    other = ABSTRACT.replace(params={**ABSTRACT.params, "extra": {"b": ABSTRACT.params["w"]}})
    message = rf"^{folder}/30 belongs to another model: extra/b are not in both$"
    with pytest.raises(UserError, match=message):
        restore(folder, other)
    with pytest.raises(UserError, match=message):
        restore_params(folder, other.params, step=30, metric="loss", check=ACCEPT, tell=pytest.fail)
    assert (folder / "30").is_dir()


def test_another_format_is_refused(folder, monkeypatch):
    monkeypatch.setattr(position_file, "FORMAT", position_file.FORMAT + 1)
    save(folder, {40: None})
    monkeypatch.undo()
    with pytest.raises(UserError, match=r"/40 has checkpoint format 2, but this version reads 1; see CHANGELOG.md$"):
        restore(folder)


def test_decoding_takes_the_best_or_the_step_asked_for(folder):
    for step, expected in ((None, 20), (10, 10), (30, 30)):
        params, where = restore_params(
            folder, ABSTRACT.params, step=step, metric="loss", check=ACCEPT, tell=pytest.fail
        )
        assert_bitwise(params, state(expected).params)
        assert where["step"] == expected


def test_decoding_passes_over_damage_and_deletes_nothing(folder):
    DAMAGES["cut"](largest(folder, 20))
    told = []
    params, where = restore_params(folder, ABSTRACT.params, step=None, metric="loss", check=ACCEPT, tell=told.append)
    assert where["step"] == 30  # the newest of the others
    assert_bitwise(params, state(30).params)
    assert len(told) == 1
    assert told[0].startswith("the checkpoint of step 20 is damaged (")
    assert (folder / "20").is_dir()
    with pytest.raises(UserError, match=r"none of the checkpoints \[20\] could be read"):
        restore_params(folder, ABSTRACT.params, step=20, metric="loss", check=ACCEPT, tell=told.append)


@pytest.mark.parametrize("error", [MemoryError(), jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")])
def test_memory_that_runs_out_is_no_damage(folder, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(restoring, "_read_arrays", fail)
    with pytest.raises(type(error)):
        restoring.restore(folder, ABSTRACT, check=ACCEPT, tell=pytest.fail)
    with pytest.raises(type(error)):
        restore_params(folder, ABSTRACT.params, step=None, metric="loss", check=ACCEPT, tell=pytest.fail)


def test_decoding_without_a_checkpoint_says_what_there_is(folder, tmp_path):
    def ask(where, step=None):
        restore_params(where, ABSTRACT.params, step=step, metric="loss", check=ACCEPT, tell=pytest.fail)

    with pytest.raises(UserError, match=rf"^{folder} has no checkpoint of step 25; it has 10, 20, 30$"):
        ask(folder, 25)
    with pytest.raises(UserError, match=rf"none: there is no checkpoint here; .* convs2s train --workdir={tmp_path}$"):
        ask(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=rf"empty: there is no checkpoint here; .* convs2s train --workdir={tmp_path}$"):
        ask(tmp_path / "empty")


def test_a_checkpoint_is_read_in_other_bits_and_not_continued_in_them(folder):
    """With another JAX_ENABLE_X64 than when it was saved; it was called damaged."""

    def widened(x):
        return jax.ShapeDtypeStruct(x.shape, np.float64 if x.dtype == np.float32 else x.dtype)

    wide, expected, numbers = jax.tree.map(widened, ABSTRACT), state(30), {"metric": "loss", "check": ACCEPT}
    with jax.enable_x64(True):
        params, _ = restore_params(folder, wide.params, step=30, tell=pytest.fail, **numbers)
        assert params["w"].dtype == np.float64
        np.testing.assert_array_equal(params["w"], np.asarray(expected.params["w"], np.float64))
        with pytest.raises(UserError, match="was saved in float32, but this process computes in float64; continue"):
            restoring.restore(folder, wide, check=ACCEPT, tell=pytest.fail)


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
        time.sleep(0.1)
        shutil.rmtree(folder / "20")

    shutil.rmtree(folder / "20" / "optimizer")
    threading.Thread(target=rest).start()


@pytest.mark.parametrize("action", [removed, removed_slowly])
@pytest.mark.parametrize("when", [(position_file, "read"), (restoring, "_read_arrays")], ids=["position", "arrays"])
def test_a_checkpoint_that_goes_while_it_is_read_is_not_damaged(folder, monkeypatch, action, when):
    meanwhile(monkeypatch, *when, lambda: action(folder))
    assert read(folder) == 30


def test_a_step_that_is_asked_for_and_goes_is_missing_not_damaged(folder, monkeypatch):
    meanwhile(monkeypatch, restoring, "_read_arrays", lambda: removed(folder))
    with pytest.raises(UserError, match=r"has no checkpoint of step 20; it has 10, 30$"):
        read(folder, step=20)


def test_checkpoints_that_are_replaced_without_an_end_are_given_up_in_a_sentence(folder, monkeypatch):
    real = restoring._read_arrays
    monkeypatch.setattr(restoring, "_read_arrays", lambda place, placed: real(place.with_name("none"), placed))
    monkeypatch.setattr(restoring, "is_removed", lambda _: True)
    monkeypatch.setattr(restoring, "LISTINGS", 3)
    with pytest.raises(UserError, match=r"faster than they can be read; decode from a copy of the workdir, or train"):
        read(folder)
