"""Files and folders in object stores that a command reads or writes as a whole, through a local copy."""

import errno
import re
import signal
from pathlib import Path

import pytest

from convs2s_jax.core import stores
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.guard import TerminatedError, sigterm_interrupts
from convs2s_jax.core.local_copies import incoming, incoming_folder, outgoing, outgoing_folder
from tests.stores import bucket, requests, temporary  # noqa: F401  (fixtures)

TEMPORARY = "convs2s_jax-*"


def fill(folder, names=("z", "a/b", "a/mark", "c")):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)


def test_a_file_is_read_and_written_under_its_address(bucket, temporary):  # noqa: F811
    with outgoing("--output", "gs://bucket/a.txt", print) as path:
        path.write_bytes(b"\x00one")
    with incoming("--input", "gs://bucket/a.txt") as copy:
        assert (copy.name, copy.read_bytes()) == ("a.txt", b"\x00one")
        with (
            pytest.raises(UserError, match=r"^gs://bucket/a\.txt is bad$"),
            incoming("--x", "gs://bucket/a.txt") as one,
        ):
            raise UserError(f"{one} is bad")
    with (
        pytest.raises(UserError, match=r"^--input=gs://bucket/b: there is no such object$"),
        incoming("--input", "gs://bucket/b"),
    ):
        pytest.fail("there is a copy")
    assert list(temporary.iterdir()) == []


def test_a_large_object_is_refused(bucket, temporary):  # noqa: F811
    fill(bucket, ("abc", "other"))
    assert list(stores.pieces("gs://bucket/abc", most=3)) == [b"abc"]
    with (
        pytest.raises(
            UserError, match=r"^--input=gs://bucket/abc cannot be read: it has more than 2 bytes, .* another"
        ),
        incoming("--input", "gs://bucket/abc", most=2),
    ):
        pytest.fail("there is a copy")
    assert list(temporary.iterdir()) == []
    with pytest.raises(UserError, match="there is no such object"), incoming("--input", "gs://bucket/no", most=2):
        pytest.fail("there is a copy")


def test_what_is_wanted_of_a_folder_is_copied(bucket, temporary):  # noqa: F811
    fill(bucket / "in", ("ab", "a/c", "ad", "b"))
    with incoming_folder("--dicts", "gs://bucket/in/", lambda name: name not in ("ad", "b")) as folder:
        assert sorted(path.name for path in folder.rglob("*")) == ["a", "ab", "c"]
        assert (folder / "a" / "c").read_text() == "a/c"
        with (
            pytest.raises(UserError, match=r"^gs://bucket/in/b is missing$"),
            incoming_folder("--dicts", "gs://bucket/in/", lambda _: False) as other,
        ):
            raise UserError(f"{other}/b is missing")
    assert list(temporary.iterdir()) == []


def test_a_folder_is_uploaded_at_the_end_and_what_marks_it_as_complete_last(bucket, requests, temporary):  # noqa: F811
    told = []
    with outgoing_folder("--output", "gs://bucket/out/", told.append, last="mark") as (folder, tell):
        assert not folder.exists()
        fill(folder)
        tell(f"{folder}/c is written")
        assert requests == []
    assert told == ["gs://bucket/out/c is written"]
    assert sorted(requests) == [("write", f"gs://bucket/out/{name}") for name in ("a/b", "a/mark", "c", "z")]
    assert requests[-1] == ("write", "gs://bucket/out/a/mark")
    assert stores.read("gs://bucket/out/a/b") == b"a/b"
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("name", ["x/.", "x/..", ".", ".."])
def test_no_other_folder_is_deleted_or_uploaded(name, bucket, requests, temporary, monkeypatch):  # noqa: F811
    """Such addresses are refused as flags, but not by a library. They are valid in a store, but not in the test's."""
    monkeypatch.setattr(stores, "names", lambda *_: [])
    (temporary / "other").mkdir()
    (temporary / "other" / "secret").write_text("secret")
    bucket.mkdir()
    with outgoing_folder("--output", f"gs://bucket/{name}", print) as (folder, *_):
        folder.mkdir()
        assert folder.parent.parent == temporary
    assert requests == []
    assert [path.name for path in temporary.iterdir()] == ["other"]


@pytest.mark.parametrize("name", ["../other", "{}/other", "a//other", "./other"])
def test_no_file_outside_the_copy_is_written(name, bucket, temporary, monkeypatch):  # noqa: F811
    """In a store, these are names like others; whoever writes there must not write here."""
    (temporary / "other").write_text("own")
    name = name.format(temporary)
    monkeypatch.setattr(stores, "names", lambda *_: [name])
    monkeypatch.setattr(stores, "pieces", lambda _, **__: iter([b"theirs"]))
    with (
        pytest.raises(UserError, match=f"^--dicts=gs://bucket/in cannot be used: {re.escape(name)} is not the name"),
        incoming_folder("--dicts", "gs://bucket/in", lambda _: True),
    ):
        pytest.fail("there is a copy")
    assert (temporary / "other").read_text() == "own"


def test_a_bucket_that_is_not_there_is_told_before_the_work(bucket, monkeypatch):  # noqa: F811
    def missing(*_):
        raise FileNotFoundError(2, "no such bucket")

    monkeypatch.setattr(stores, "names", missing)
    with (
        pytest.raises(UserError, match=r"^--output=gs://none/out cannot be used: no such bucket; docs/object-stores"),
        outgoing_folder("--output", "gs://none/out", print),
    ):
        pytest.fail("there is a folder")


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_full_disk_is_that_of_the_copy(wrapped, bucket, temporary):  # noqa: F811
    def full():
        error = OSError(errno.ENOSPC, "No space left on device")
        if wrapped:
            raise UserError(f"{next(temporary.iterdir())}/out cannot be written: choose another folder") from error
        raise error

    bucket.mkdir()
    for as_folder in (False, True):
        with pytest.raises(
            UserError, match=rf"^--output=gs://bucket/out: no space .* in {temporary}; free disk space, "
        ):
            write(as_folder, print, meanwhile=full)


def test_an_address_that_must_be_new_is_refused_if_there_is_something(bucket, requests, temporary):  # noqa: F811
    """It may also be the folder of something else: the user decides."""
    fill(bucket / "out", ("a",))
    with (
        pytest.raises(UserError, match=r"^--output=gs://bucket/out already exists: choose a new folder, or delete "),
        outgoing_folder("--output", "gs://bucket/out", print, is_new="mark", last="mark"),
    ):
        pytest.fail("there is a folder")
    assert requests == list(temporary.iterdir()) == []


def test_nothing_is_uploaded_after_an_error(bucket, requests, temporary):  # noqa: F811
    bucket.mkdir()

    def bad():
        raise UserError(f"{temporary} is bad")

    def ended():
        raise KeyboardInterrupt

    for as_folder in (False, True):
        with pytest.raises(UserError):
            write(as_folder, print, meanwhile=bad)
        with pytest.raises(KeyboardInterrupt):
            write(as_folder, print, meanwhile=ended)
    assert requests == []
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("as_folder", [False, True])
def test_results_that_cannot_be_uploaded_are_kept(as_folder, bucket, monkeypatch):  # noqa: F811
    def refused(*_):
        raise PermissionError(13, "Permission denied")

    bucket.mkdir()
    monkeypatch.setattr(stores, "write", refused)
    sentence = r"^--output=gs://bucket/out cannot be written: Permission denied; a part "
    with pytest.raises(UserError, match=sentence) as error:
        write(as_folder, print)
    kept = Path(str(error.value).rpartition("all results are in ")[2])
    assert [path.read_text() for path in kept.rglob("*") if path.is_file()] == ["done"]


@pytest.mark.parametrize("signals", [1, 2])
@pytest.mark.parametrize("as_folder", [False, True])
def test_an_interrupt_waits_for_the_upload_and_a_second_one_ends_it(as_folder, signals, bucket, monkeypatch):  # noqa: F811
    told, left = [], [signals]

    def interrupted(function):
        def wrapped(*arguments):
            while left[0]:
                left[0] -= 1
                signal.raise_signal(signal.SIGTERM)
            return function(*arguments)

        return wrapped

    bucket.mkdir()

    def interrupt_uploads():
        monkeypatch.setattr(stores, "write", interrupted(stores.write))
        # in the main thread, where signals arrive
        monkeypatch.setattr(stores, "in_parallel", interrupted(lambda work, items: [work(item) for item in items]))

    with pytest.raises(TerminatedError if signals == 1 else KeyboardInterrupt), sigterm_interrupts():
        write(as_folder, told.append, meanwhile=interrupt_uploads)
    if signals == 1:
        assert told == []
        assert stores.names("gs://bucket") == (["out/a"] if as_folder else ["out"])
        return
    [sentence] = told
    beginning, _, kept = sentence.partition("; all results are in ")
    assert beginning == "--output=gs://bucket/out is not complete; a part may be in the store"
    assert [path.read_text() for path in Path(kept).rglob("*") if path.is_file()] == ["done"]


def write(as_folder, tell, *, meanwhile=lambda: None):
    if as_folder:
        with outgoing_folder("--output", "gs://bucket/out", tell) as (folder, *_):
            folder.mkdir()
            (folder / "a").write_text("done")
            meanwhile()
    else:
        with outgoing("--output", "gs://bucket/out", tell) as path:
            path.write_text("done")
            meanwhile()
