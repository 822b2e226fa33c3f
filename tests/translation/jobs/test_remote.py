"""Decoding with files in object stores, and a training there; `make drills` tries the real protocols."""

import signal
from pathlib import Path

import pytest

from convs2s_jax.core import stores
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.guard import sigterm_interrupts
from convs2s_jax.training.run import store_copy
from convs2s_jax.training.run.loop import train
from convs2s_jax.translation import shortlists
from convs2s_jax.translation import trained as trained_model
from convs2s_jax.translation.jobs import remote
from convs2s_jax.translation.jobs.decoding import decode
from convs2s_jax.translation.jobs.options import Options
from convs2s_jax.translation.jobs.resuming import SUFFIX
from tests import tiny
from tests.stores import bucket  # noqa: F401  (a fixture)

LINES = "Norway\n5 kilowatts\nNorway and Spain\n"


@pytest.fixture
def here(trained, tmp_path):
    """The output of a local command."""
    (tmp_path / "in").write_text(LINES)
    decode(Options(workdir=(str(trained),), input=f"{tmp_path}/in", output=f"{tmp_path}/out"), tell=print)
    return (tmp_path / "out").read_bytes()


def upload(workdir):
    for path in workdir.rglob("*"):
        if path.is_file():
            stores.write(f"gs://bucket/run/{path.relative_to(workdir)}", path.read_bytes())
    stores.write("gs://bucket/in", LINES.encode())


def decoded(told=None, **options):
    given = {"workdir": ("gs://bucket/run",), "input": "gs://bucket/in", "output": "gs://bucket/out", **options}
    with remote.localised(Options(**given), print if told is None else told.append) as (local, tell):
        decode(local, tell=tell)
    return stores.read(given["output"])


@pytest.mark.drill
def test_a_training_in_a_store_has_the_bits_of_a_local_one(bucket, trained):  # noqa: F811
    train(tiny.config(training__max_steps=3, training__save_every=1, training__keep=3), "gs://bucket/run")
    with store_copy.opened("gs://bucket/run") as folder:
        there = tiny.arrays(folder, 3)
    own = tiny.arrays(trained, 3)
    assert {name: array.tobytes() for name, array in there.items()} == {n: a.tobytes() for n, a in own.items()}
    assert not [name for name in stores.names("gs://bucket/run") if name.startswith(("lock", "cache"))]
    assert b"stopped at step 3" in stores.read("gs://bucket/run/train.log")  # written at the very end


@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_waits_for_the_last_upload_and_a_second_one_tells_the_folder(signals, bucket, monkeypatch):  # noqa: F811
    told, places, left, write = [], [], [signals], stores.write

    def interrupted(address, content):
        while left[0]:
            left[0] -= 1
            signal.raise_signal(signal.SIGTERM)
        write(address, content)

    def work():
        options = Options(workdir=("a",), output="gs://bucket/out")
        with sigterm_interrupts(), remote.localised(options, told.append) as (local, _):
            places.append(Path(local.output))
            places[0].write_bytes(b"done\n")
            Path(f"{local.output}{SUFFIX}").write_bytes(b"{}")
            monkeypatch.setattr(stores, "write", interrupted)

    stores.write("gs://bucket/other", b"")
    with pytest.raises(KeyboardInterrupt):
        work()
    [path] = places
    if signals == 1:
        assert stores.read("gs://bucket/out") == b"done\n"
        assert (told, path.parent.exists()) == ([], False)
    else:
        assert told == [
            f"--output=gs://bucket/out is not complete; a part may be in the store; all results are in {path.parent}"
        ]
        assert path.read_bytes() == b"done\n"


def test_a_shortlist_of_a_run_in_a_store_is_of_its_training_text(bucket, trained, monkeypatch):  # noqa: F811
    upload(trained)
    sizes = {"words": 2, "frequent": 2, "iterations": 1, "pairs": 100, "tell": lambda _: None}
    with store_copy.opened("gs://bucket/run") as folder:
        made, _ = shortlists.make(folder, **sizes)
        assert len(made.words)
        monkeypatch.setattr(trained_model, "fingerprint", lambda *_: 1)
        with pytest.raises(UserError, match=r"^the training data of --workdir=.* have changed since its last chec"):
            shortlists.make(folder, **sizes)


def test_a_start_that_is_refused_leaves_the_store_as_it_was(bucket, trained):  # noqa: F811
    upload(trained)
    before = {name: stores.read(f"gs://bucket/run/{name}") for name in stores.names("gs://bucket/run")}
    with pytest.raises(
        UserError, match=r"^--workdir=gs://bucket/run contains a run with another configuration: model\.dro"
    ):
        train(tiny.config(model__dropout=0.5), "gs://bucket/run")
    assert {name: stores.read(f"gs://bucket/run/{name}") for name in stores.names("gs://bucket/run")} == before


def test_an_output_in_a_store_is_that_of_a_local_command_and_is_resumed(bucket, trained, here):  # noqa: F811
    upload(trained)
    told = []
    assert decoded(told, reference=("gs://bucket/in",)) == here
    assert [sentence for sentence in told if sentence.startswith("BLEU")]
    stores.write("gs://bucket/out", here + b"added")
    with pytest.raises(UserError, match=r"^--resume: gs://bucket/out has more than the 3 lines that were written; "):
        decoded(resume=True)
    stores.write("gs://bucket/out", here)
    told.clear()
    assert decoded(told, resume=True) == here
    assert told[0] == "gs://bucket/out already has 3 of 3 lines; nothing left to do"
    with pytest.raises(UserError, match=r"^--resume: gs://bucket/out is the output of another command: --batch_size"):
        decoded(resume=True, batch_size=2)
    assert stores.read("gs://bucket/out") == here


def test_a_name_may_be_longer_than_a_disk_allows(bucket, trained, here, monkeypatch):  # noqa: F811
    """A store takes 1,024 bytes; the copy of such an object ended in a traceback."""
    upload(trained)
    name, told, there = f"gs://bucket/{'n' * 900}.txt", [], {}
    read, pieces = stores.read, stores.pieces
    monkeypatch.setattr(stores, "write", there.__setitem__)
    monkeypatch.setattr(stores, "exists", there.__contains__)
    monkeypatch.setattr(stores, "read", lambda at: there.get(at) or read(at))
    monkeypatch.setattr(stores, "pieces", lambda at, **most: iter([there[at]]) if at in there else pieces(at, **most))
    assert decoded(output=name) == here
    assert decoded(told, output=name, resume=True) == here
    assert told[0] == f"{name} already has 3 of 3 lines; nothing left to do"


def test_what_is_written_so_far_is_in_the_store_when_an_interrupt_ends_it(bucket, trained, here, monkeypatch):  # noqa: F811
    upload(trained)

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("convs2s_jax.translation.jobs.decoding.report", interrupted)
    with pytest.raises(KeyboardInterrupt):
        decoded()
    assert stores.read("gs://bucket/out") == here
    assert stores.exists(f"gs://bucket/out{SUFFIX}")


@pytest.mark.parametrize("flag", ["input", "prefix", "score"])
def test_a_missing_object_is_named_by_its_flag(bucket, trained, flag):  # noqa: F811
    upload(trained)
    with pytest.raises(UserError, match=rf"^--{flag}=gs://bucket/none: there is no such object$"):
        decoded(**{flag: "gs://bucket/none"})


def test_mistakes_in_a_copied_file_are_told_of_its_address(bucket, trained):  # noqa: F811
    upload(trained)
    stores.write("gs://bucket/in", b"one\n\xff\n")
    with pytest.raises(UserError, match=r"^gs://bucket/in, line 2: byte 0xff is not UTF-8"):
        decoded()


def test_an_output_that_cannot_be_written_is_kept_here(bucket, trained, here, monkeypatch):  # noqa: F811
    upload(trained)

    def fails(address, content):
        raise OSError(5, "no network", address)

    monkeypatch.setattr(stores, "write", fails)
    with pytest.raises(
        UserError, match=r"^--output=gs://bucket/out cannot be written: no network; .* are in "
    ) as error:
        decoded()
    folder = str(error.value).rpartition(" ")[2]
    assert Path(folder, "out").read_bytes() == here


def test_the_output_is_not_the_input(bucket):  # noqa: F811
    with pytest.raises(UserError, match=r"^--output=gs://bucket/in is the file of --input"):
        decoded(output="gs://bucket/in")


@pytest.mark.parametrize("output", ["gs://bucket", "gs://bucket/folder/"])
def test_an_output_without_a_name_is_refused(bucket, output):  # noqa: F811
    with pytest.raises(UserError, match=r"^--output=gs://.* has no object name: use gs://BUCKET/NAME$"):
        decoded(output=output, workdir=("nowhere",), input="-")


@pytest.mark.parametrize("name", ["config.json", "vocab/src.model", "other/../config.json"])
def test_no_object_of_the_run_is_written_over(bucket, trained, name):  # noqa: F811
    upload(trained)
    with pytest.raises(UserError, match=r"^--output=gs://bucket/run/.* belongs to the run --workdir=gs://bucket/run: "):
        decoded(output=f"gs://bucket/run/{name}")
    assert stores.read("gs://bucket/run/config.json") == (trained / "config.json").read_bytes()


@pytest.mark.parametrize("broken", [False, True], ids=["no name", "a store that fails"])
def test_a_refused_output_leaves_no_folder_here(bucket, tmp_path, monkeypatch, broken):  # noqa: F811
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def fail(*_, **__):
        raise OSError(5, "Input/output error")

    if broken:
        monkeypatch.setattr(stores, "pieces", fail)
    output = "gs://bucket/out" if broken else "gs://bucket/folder/"
    with (
        pytest.raises(UserError, match=f"^--output={output}"),
        remote.localised(Options(workdir=("a",), output=output, resume=True), print),
    ):
        pass
    assert not list(tmp_path.iterdir())
