"""Decoding with files in object stores, and a training there; `make drills` tries the real protocols."""

import signal
from pathlib import Path

import pytest

from convs2s_jax.core import stores
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.guard import sigterm_interrupts
from convs2s_jax.translation.jobs import remote
from convs2s_jax.translation.jobs.decoding import decode
from convs2s_jax.translation.jobs.options import Options
from convs2s_jax.translation.jobs.output import SUFFIX
from tests.stores import bucket  # noqa: F401  (a fixture)

LINES = "Norway\n5 kilowatts\nNorway and Spain\n"

pytestmark = pytest.mark.usefixtures("bucket")


@pytest.fixture
def run(bucket, trained):  # noqa: F811
    """The run and an input in the store."""
    for path in trained.rglob("*"):
        if path.is_file():
            stores.write(f"gs://bucket/run/{path.relative_to(trained)}", path.read_bytes())
    stores.write("gs://bucket/in", LINES.encode())


@pytest.fixture
def here(trained, tmp_path):
    """The output of a local command."""
    (tmp_path / "in").write_text(LINES)
    decode(Options(workdir=(str(trained),), input=f"{tmp_path}/in", output=f"{tmp_path}/out"), tell=print)
    return (tmp_path / "out").read_bytes()


def decoded(told=None, **options):
    given = {"workdir": ("gs://bucket/run",), "input": "gs://bucket/in", "output": "gs://bucket/out", **options}
    decode(Options(**given), tell=print if told is None else told.append)
    return stores.read(given["output"])


@pytest.mark.parametrize("signals", [1, 2])
def test_a_signal_waits_for_the_last_upload_and_a_second_one_tells_the_folder(signals, monkeypatch):
    told, places, left, write = [], [], [signals], stores.write

    def interrupted(address, content):
        while left[0]:
            left[0] -= 1
            signal.raise_signal(signal.SIGTERM)
        write(address, content)

    def work():
        options = Options(workdir=("a",), output="gs://bucket/out")
        with sigterm_interrupts(), remote.localised(options, told.append) as (local, *_):
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


@pytest.mark.usefixtures("run")
def test_an_output_in_a_store_is_that_of_a_local_command_and_is_resumed(here, monkeypatch):
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


@pytest.mark.usefixtures("run")
def test_each_window_is_in_the_store_after_a_while_and_the_last_one_when_an_interrupt_ends_it(here, monkeypatch):
    monkeypatch.setattr(remote, "PERIOD", 0.0)
    writes, write = [], stores.write
    monkeypatch.setattr(stores, "write", lambda at, content: (writes.append((at, len(content))), write(at, content)))

    def interrupted(*_):
        assert [size for at, size in writes if at == "gs://bucket/out"] == [
            len(b"".join(here.splitlines(keepends=True)[:n])) for n in (1, 2, 3)
        ]
        raise KeyboardInterrupt

    monkeypatch.setattr("convs2s_jax.translation.jobs.job.Translation.report", interrupted)
    with pytest.raises(KeyboardInterrupt):
        decoded(window=1, batch_size=1)
    assert stores.read("gs://bucket/out").count(b"\n") == 3
    assert f"out{SUFFIX}" in stores.names("gs://bucket")


@pytest.mark.usefixtures("run")
def test_an_output_that_cannot_be_written_is_kept_here(here, monkeypatch):
    def fails(address, content):
        raise OSError(5, "no network", address)

    monkeypatch.setattr(stores, "write", fails)
    with pytest.raises(
        UserError, match=r"^--output=gs://bucket/out cannot be written: no network; .* are in "
    ) as error:
        decoded()
    folder = str(error.value).rpartition(" ")[2]
    assert Path(folder, "out").read_bytes() == here


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prefix": "gs://bucket/none"}, r"^--prefix=gs://bucket/none: there is no such object$"),
        ({"input": "gs://bucket/odd"}, r"^gs://bucket/odd, line 2: byte 0xff is not UTF-8"),
        ({"output": "gs://bucket/in"}, r"^--output=gs://bucket/in is the file of --input"),
        ({"output": "gs://bucket"}, r"^--output=gs://.* has no object name: use gs://BUCKET/NAME$"),
        ({"output": "gs://bucket/folder/"}, r"^--output=gs://.* has no object name: use gs://BUCKET/NAME$"),
    ],
    ids=str,
)
def test_mistakes_are_told_of_their_address_and_leave_no_folder_here(options, message, tmp_path, monkeypatch):
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr("tempfile.tempdir", f"{tmp_path}/copies")
    stores.write("gs://bucket/odd", b"one\n\xff\n")
    with pytest.raises(UserError, match=message):
        decoded(**options)
    assert stores.read("gs://bucket/in") == LINES.encode()
    assert not list((tmp_path / "copies").iterdir())
