"""Whole windows only: a full disk, an interrupt, and a file that must not be touched yet."""

import errno
import os
import signal

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.translation.jobs import output
from convs2s_jax.translation.jobs.output import Finished, check_writable, opened, record_of

OLD = "old 1\nold 2\n"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "out"
    path.write_text(OLD)
    return path


def test_results_are_there_when_write_returns_and_nothing_is_touched_before(path):
    with pytest.raises(UserError, match="wrong"), opened(str(path), {}, Finished()):
        raise UserError("wrong")
    with opened(str(path), {}, Finished()) as write:
        assert path.read_text() == OLD
        write(["a\n", "b\nb\n"])
        assert path.read_text() == "a\nb\nb\n"
        write(["c\n"])
    assert path.read_text() == "a\nb\nb\nc\n"
    done = Finished(1, 2)
    with opened(str(path), {}, done) as write:
        write(["new\n"])
    assert path.read_text() == "a\nnew\n"
    with opened(str(path), {}, Finished()):
        pass
    assert path.read_text() == ""


def test_an_open_file_is_not_truncated_and_a_pipe_is_written(path):
    """As if standard output was redirected to it, and others write there too."""
    with path.open("a") as file:
        name = f"/proc/self/fd/{file.fileno()}"
        check_writable(name)
        with opened(name, {}, Finished()) as write:
            write(["a\n"])
        file.write("end\n")
    assert path.read_text() == f"{OLD}a\nend\n"
    reader, writer = os.pipe()
    with opened(f"/dev/fd/{writer}", {}, Finished()) as write:
        write(["a\n"])
    os.close(writer)
    with os.fdopen(reader) as file:
        assert file.read() == "a\n"


@pytest.mark.parametrize("room", [0, 1, 5, 9, 10])
def test_a_full_disk_leaves_whole_windows(path, monkeypatch, room):
    """`room` bytes fit after those of the first window; the second one has 10."""
    real, left = os.write, [100]

    def write_some(file, data):
        count = min(left[0], len(data), 3)  # and never much at once
        if count == 0 and len(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= count
        return real(file, bytes(data[:count]))

    monkeypatch.setattr(output.os, "write", write_some)
    monkeypatch.setattr(output.files, "replace_file", lambda *_: None)
    parts = ["a\n", "b\nb\n", "c\nc\n"]
    with opened(str(path), {}, Finished()) as write:
        write(["first\n"])
        left[0] = room
        if room < 10:
            why = "No space left on device; free disk space .* --resume continues"
            with pytest.raises(UserError, match=f"^--output={path} cannot be written: {why}"):
                write(parts)
            assert path.read_text() == "first\n"
        else:
            write(parts)
            assert path.read_text() == "first\n" + "".join(parts)


def test_an_interrupt_waits_for_the_write(path, monkeypatch):
    real, calls = os.write, []

    def interrupted(file, data):
        calls.append(len(data))
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return real(file, bytes(data[:3]))

    monkeypatch.setattr(output.os, "write", interrupted)
    with opened(str(path), {}, Finished()) as write, pytest.raises(KeyboardInterrupt):
        write(["first\n", "second\n", "third\n"])
    assert path.read_text() == "first\nsecond\nthird\n"


def test_writing_is_tried_beforehand_and_changes_nothing(path, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name in ("-", "/dev/null", path, tmp_path / "new", tmp_path / "pipe"):  # opening the pipe would wait
        check_writable(str(name))
    assert path.read_text() == OLD
    assert {entry.name for entry in tmp_path.iterdir()} == {"out", "pipe"}
    for name, why in ((tmp_path, "Is a directory"), (tmp_path / "no" / "out", "No such file or directory")):
        with pytest.raises(UserError, match=f"^--output={name} cannot be written: {why}; choose another file"):
            check_writable(str(name))
    (tmp_path / "config.json").hardlink_to(path)
    with pytest.raises(
        UserError, match=r"out is one of 2 names of a file \(hard links\), which would all change: delete"
    ):
        check_writable(str(path))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_device_that_is_full_is_a_sentence():
    rest = r"No space left on device; free disk space or choose another file$"  # nothing of it can be resumed
    refused = pytest.raises(UserError, match=rf"^--output=/dev/full cannot be written: {rest}")
    with refused, opened("/dev/full", {}, Finished()) as write:
        write(["a\n"])


def test_only_files_have_a_record(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert record_of(str(tmp_path / "link")) == tmp_path / "real.resume.json"
    assert [record_of(name) for name in ("/dev/null", "-", "/dev/stdout")] == [None] * 3
