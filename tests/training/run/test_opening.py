"""A start that is refused changes nothing."""

import re
import shutil

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.checkpoints import checkpoint, restoring
from convs2s_jax.training.run.lock import locked
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.processes.interrupts import Interrupts
from tests import tiny
from tests.checkpoints import largest

TEXT = "a b c d e\nb c d e f\nc d e f g\n" * 20


def snapshot(folder):
    """Content and time of every file and folder, but for the lock and the cache, which may be used again."""
    return {
        str(path.relative_to(folder)): (path.read_bytes() if path.is_file() else None, path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.relative_to(folder).parts[0] not in ("lock", "cache")
    }


def texts(folder, text=TEXT):
    folder.mkdir()
    for side in ("src", "tgt"):
        for split in ("train", "valid"):
            (folder / f"{split}.{side}").write_text(text)
    return folder


def config(folder, **others):
    options = {
        **tiny.files(folder, "src", "tgt"),
        "data__vocabulary__kind": "words",
        "training__max_steps": 3,
        "training__save_every": 1,
        "training__report_every": 1,
    }
    return tiny.config(**{**options, **others})


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A folder of texts, and a workdir with three checkpoints; to be copied."""
    folder = tmp_path_factory.mktemp("begun")
    train(config(texts(folder / "texts"), training__keep=3), folder / "run")
    return folder


@pytest.fixture
def workdir(begun, tmp_path):
    return shutil.copytree(begun / "run", tmp_path / "run")


def cut_all(workdir):
    for step in run_folder.finished(workdir / "checkpoints"):
        path = largest(workdir / "checkpoints", step)
        path.write_bytes(path.read_bytes()[:100])


def cut_newest(workdir):
    path = largest(workdir / "checkpoints", 3)
    path.write_bytes(path.read_bytes()[:100])


def damage_vocabulary(workdir):
    (workdir / "vocab" / "src.txt").write_text("a 9\nb 8\n")


def swap_vocabularies(workdir):
    damage_vocabulary(workdir)
    (workdir / "vocab" / "checksums.json").unlink()


def unchanged(_workdir):
    pass


OTHER = {"search__beam_size": 7, "training__max_steps": 9}
REFUSALS = {
    "other data": (cut_newest, {"other": True, **OTHER}, r"training data .* have changed since its last checkpoint"),
    "another configuration": (unchanged, {"model__dropout": 0.3, **OTHER}, "model.dropout is 0.1 there and 0.3 here"),
    "another vocabulary": (swap_vocabularies, OTHER, "vocabulary of another model"),
    "a damaged vocabulary": (damage_vocabulary, OTHER, r"src\.txt is damaged or was edited"),
    "no vocabulary": (lambda workdir: shutil.rmtree(workdir / "vocab"), OTHER, "vocab is missing"),
    "no readable checkpoint": (cut_all, OTHER, r"none of the checkpoints \[1, 2, 3\] could be read"),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_refused_start_changes_nothing(kind, begun, workdir, tmp_path):
    damage, options, message = REFUSALS[kind]
    damage(workdir)
    other = texts(tmp_path / "other", TEXT.replace("g", "e")) if "other" in options else begun / "texts"
    before = snapshot(workdir)
    with pytest.raises(UserError, match=message):
        train(config(other, **{name: value for name, value in options.items() if name != "other"}), workdir)
    assert snapshot(workdir) == before


def test_a_start_beside_another_trainer_is_refused_and_changes_nothing(begun, workdir):
    before = snapshot(workdir)
    with locked(workdir):
        lock = (workdir / "lock").read_bytes()
        with pytest.raises(UserError, match=rf"^--workdir={workdir} is in use: process \d+ on .* is training there; "):
            train(config(begun / "texts", **OTHER), workdir)
        assert (workdir / "lock").read_bytes() == lock
    assert snapshot(workdir) == before
    assert not (workdir / "lock").exists()


@pytest.mark.parametrize(
    ("options", "left"),
    [
        ({"training__bleu_tokenize": "none such"}, set()),
        ({"data__vocabulary__dir": "none"}, set()),
        ({"data__batch__max_length": 2}, {"cache"}),
    ],
)
def test_a_refused_first_start_leaves_no_workdir(begun, tmp_path, options, left):
    workdir = tmp_path / "new" / "run"
    with pytest.raises(UserError):
        train(config(begun / "texts", **options), workdir)
    assert {path.name for path in workdir.glob("*")} == left
    assert workdir.parent.exists() == bool(left)  # folders made for it go as well
    with pytest.raises(UserError, match=r"no such folder|no training was started there"):
        run_folder.load_config(workdir)


def test_a_workdir_that_cannot_be_made_is_named(begun, tmp_path):
    (tmp_path / "file").write_text("")
    workdir = tmp_path / "file" / "run"
    message = f"^--workdir={workdir} cannot be written: Not a directory; use another workdir$"
    with pytest.raises(UserError, match=message):
        train(config(begun / "texts"), workdir)


def test_what_a_start_passes_over_is_put_right_when_it_begins(begun, workdir):
    cut_newest(workdir)
    train(config(begun / "texts", training__keep=3), workdir)
    assert {path.name for path in (workdir / "checkpoints").iterdir()} == {"1", "2", "3", "3.damaged"}
    assert tiny.digests(workdir, 3) == tiny.digests(begun / "run", 3)
    assert [line["step"] for line in tiny.metrics(workdir) if line["split"] == "train"] == [1, 2, 3]


def test_the_first_save_is_read_back(begun, tmp_path, monkeypatch):
    """A run whose checkpoints cannot be read said so at its end."""
    monkeypatch.setattr(checkpoint, "_PLAIN", re.compile(".*"))  # Orbax takes brackets for a pattern
    with pytest.raises(
        UserError, match=r"checkpoints/1: this checkpoint was saved, but cannot be read back \(.*plain let"
    ):
        train(config(begun / "texts"), tmp_path / "[a]")
    assert {line["step"] for line in tiny.metrics(tmp_path / "[a]")} == {1}


@pytest.mark.parametrize("name", ["train.log", "metrics.jsonl.damaged"])
def test_a_run_writes_through_no_link(begun, workdir, name):
    (workdir.parent / "notes").write_text("text")
    (workdir / name).unlink(missing_ok=True)
    (workdir / name).symlink_to("../notes")
    with (workdir / "metrics.jsonl").open("a") as metrics:
        metrics.write("damaged\n")
    with pytest.raises(OSError, match=f"{name} is a link to another file"):
        train(config(begun / "texts", training__max_steps=4), workdir)
    assert (workdir.parent / "notes").read_text() == "text"


def test_files_of_the_user_in_a_workdir_stay(begun, tmp_path):
    added = [tmp_path / "run" / name for name in ("vocab/notes", "cache/vocab/notes", "checkpoints/21.before", "notes")]
    for path in added:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    for steps in (2, 4):
        train(config(begun / "texts", training__max_steps=steps, training__keep=1), tmp_path / "run")
    assert all(path.exists() for path in added)


class Acting(Interrupts):
    """Acts on the workdir after the second update."""

    def __init__(self, action):
        super().__init__()
        self.action = action

    def ask(self):
        super().ask()
        if self._asked == 2:
            self.action()


@pytest.mark.parametrize("then", ["renamed", "renamed while it is read", "deleted", "replaced"])
def test_a_workdir_that_is_renamed_or_deleted_ends_its_run(begun, tmp_path, then, monkeypatch):
    """It went on in a second workdir of the old name, and ended with 0."""
    run, moved = tmp_path / "run", tmp_path / "moved"

    def act():
        run.rename(moved)
        if then == "deleted":
            shutil.rmtree(moved)
        if then == "replaced":
            run.mkdir()
            (run / "lock").touch()

    read_back = restoring.read_back
    if "read" in then:
        monkeypatch.setattr(restoring, "read_back", lambda place: (run.exists() and act(), read_back(place)))
    with pytest.raises(UserError, match=f"^--workdir={run} was renamed or deleted during training, which stops here: "):
        train(config(begun / "texts"), run, Acting(int if "read" in then else act))
    assert [path.name for path in tmp_path.rglob("*") if run in path.parents] == ["lock"] * (then == "replaced")
    if then != "deleted":
        train(config(begun / "texts"), moved)
        assert tiny.digests(moved, 3) == tiny.digests(begun / "run", 3)


def test_a_path_that_is_not_utf8_is_refused_first(begun, tmp_path):
    with pytest.raises(UserError, match=r"its path is not valid UTF-8, which checkpoints require; rename the folder$"):
        train(config(begun / "texts"), tmp_path / "a\udcff")
    assert list(tmp_path.iterdir()) == []
