"""Batches on a mesh; validation and test data that have changed are refused, in training and in decoding."""

import shutil

import numpy as np
import pytest

from convs2s_jax.commands.convs2s import COMMANDS
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.tokens import EOS, PAD
from convs2s_jax.data.plan import Plan, PlannedBatch
from convs2s_jax.data.shapes import Shape
from convs2s_jax.data.tokens_on_disk import in_memory
from convs2s_jax.training.mesh import MeshConfig, make
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.inputs import Split, batch_on
from convs2s_jax.training.run.loop import train
from convs2s_jax.translation import shortlists
from tests import processes
from tests.training.run.test_opening import TEXT, config

SPLIT = Split(text=None, src=in_memory([[5, 6, 7], [], [8]], size=30), tgt=in_memory([[20], [21], [22]], size=30))
PLAN = Plan(shapes=(Shape(9, 9, 9), Shape(4, 2, 3)), batches=())


@pytest.mark.parametrize(("shards", "copies", "rows"), [(1, 1, 3), (2, 1, 4), (2, 2, 4), (8, 1, 8)])
def test_source_and_target_have_their_own_lengths_and_rows_are_padded_for_all_devices(shards, copies, rows):
    mesh = make(MeshConfig(data=shards, tensor=copies))
    batch = batch_on(mesh, SPLIT, PLAN, PlannedBatch(1, np.array([1, 0])))
    assert batch.src.tolist() == [[EOS, PAD, PAD, PAD], [5, 6, 7, EOS]] + [[PAD] * 4] * (rows - 2)
    assert batch.tgt.tolist() == [[21, EOS], [20, EOS]] + [[PAD] * 2] * (rows - 2)
    assert {shard.data.shape for shard in batch.src.addressable_shards} == {(rows // shards, 4)}


def write(folder, **splits):
    folder.mkdir(exist_ok=True)
    for split, text in splits.items():
        for side in ("src", "tgt"):
            (folder / f"{split}.{side}").write_text(text)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A workdir and its texts with all splits; to be copied."""
    folder = tmp_path_factory.mktemp("begun")
    write(folder / "texts", train=TEXT, valid=TEXT[:60], test=TEXT[:30])
    train(config(folder / "texts", training__max_steps=1), folder / "run")
    return folder


@pytest.fixture
def copy(begun, tmp_path):
    """A copy whose configuration knows the copied texts."""
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    run_folder.write_config(tmp_path / "run", config(tmp_path / "texts", training__max_steps=1))
    return tmp_path


def goes_on(folder):
    train(config(folder / "texts", training__max_steps=1), folder / "run")


def translated(folder, split):
    return processes.called(
        COMMANDS["decode"].run, "decode.py", f"--workdir={folder / 'run'}", f"--split={split}", "--show=0"
    )


def change_a_space(path):
    """A change that no token shows."""
    path.write_text(path.read_text().replace(" ", "  ", 1))


@pytest.mark.parametrize(("split", "name"), [("valid", "validation"), ("test", "test")])
def test_changed_data_are_refused_in_training_and_decoding(copy, split, name):
    for side in ("src", "tgt"):
        change_a_space(copy / "texts" / f"{split}.{side}")
    said = f"the {name} data of --workdir={copy / 'run'} have changed since its last checkpoint: restore them, or "
    with pytest.raises(UserError) as error:
        goes_on(copy)
    assert str(error.value) == f"{said}start over in another workdir"
    ended = translated(copy, split)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.endswith(f"decode.py: {said}translate other texts with --input and --reference\n")


def test_changed_training_data_are_refused_in_decoding_and_for_a_shortlist(copy):
    """They are known by their token ids, which training has kept in the cache."""
    sizes = {"words": 2, "frequent": 2, "iterations": 1, "pairs": 100, "tell": lambda _: None}
    before = sorted((copy / "run" / "cache").iterdir())
    ended = translated(copy, "train")
    assert (ended.returncode, ended.stdout.count("\n")) == (0, TEXT.count("\n")), ended.stderr
    shortlists.make(copy / "run", **sizes)
    assert sorted((copy / "run" / "cache").iterdir()) == before
    path = copy / "texts" / "train.src"
    path.write_text(path.read_text().replace("e", "g"))
    said = f"the training data of --workdir={copy / 'run'} have changed since its last checkpoint: restore them, or "
    ended = translated(copy, "train")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.endswith(f"decode.py: {said}translate other texts with --input and --reference\n")
    with pytest.raises(UserError) as error:
        shortlists.make(copy / "run", **sizes)
    assert str(error.value) == f"{said}use a run that was trained on them"


def test_data_that_are_gone_are_refused(copy):
    for side in ("src", "tgt"):
        (copy / "texts" / f"test.{side}").unlink()
    with pytest.raises(UserError, match=r"the test data of --workdir=.* are missing, but its last checkpoint had them"):
        goes_on(copy)


def test_a_corpus_that_has_moved_is_named_and_can_be_given(copy):
    """Digests refuse another text."""
    (copy / "texts").rename(copy / "moved")
    said = (
        f"the corpus of --workdir={copy / 'run'} is missing: '{copy / 'texts'}' does not exist; change to the folder "
        "where its training was started"
    )
    flags = ", set its place with --config.data.dir or --config.data.files"
    ended = translated(copy, "test")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.endswith(f"{said}{flags}, or translate other texts with --input and --reference\n")
    sizes = {"words": 2, "frequent": 2, "iterations": 1, "pairs": 100, "tell": lambda _: None}
    with pytest.raises(UserError, match=f"^{said}{flags}, or use another run$"):
        shortlists.make(copy / "run", **sizes)
    shortlists.make(copy / "run", **sizes, places=[("data.dir", str(copy / "moved"))])
    for given, status in (
        (f"--config.data.dir={copy / 'moved'}", 0),
        (f"--config.data.files.test=[('{copy}/moved/valid.src', '{copy}/moved/valid.tgt')]", 2),
        (f"--config.data.files.test=[('{copy}/moved/no', '{copy}/moved/test.tgt')]", 2),
    ):
        flags = (f"--workdir={copy / 'run'}", "--split=test", "--show=0", given)
        ended = processes.called(COMMANDS["decode"].run, "decode.py", *flags)
        assert ended.returncode == status, ended.stderr
    assert f"'{copy}/moved/no' does not exist" in ended.stderr
