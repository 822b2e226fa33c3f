"""Whole results only: a full disk, an interrupt, and a file that must not be touched yet."""

import errno
import os
import signal
import socket

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.translation.jobs import output
from convs2s_jax.translation.jobs.output import can_be_resumed, check_writable, descriptor_of, opened

OLD = "old 1\nold 2\n"


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "out"
    path.write_text(OLD)
    return path


def test_results_are_there_when_write_returns(path):
    with opened(str(path)) as write:
        assert path.read_text() == OLD
        write(["a\n", "b\nb\n"])
        assert path.read_text() == "a\nb\nb\n"
        write(["c\n"])
    assert path.read_text() == "a\nb\nb\nc\n"


@pytest.mark.parametrize("name", ["/dev/fd/{}", "/proc/self/fd/{}"])
def test_an_open_file_is_neither_opened_again_nor_truncated(path, name):
    """As if standard output was redirected to it, and others write there too."""
    with path.open("a") as file:
        name = name.format(file.fileno())
        check_writable(name)
        assert not can_be_resumed(name)
        with opened(name) as write:
            write(["a\n"])
        file.write("end\n")
    assert path.read_text() == f"{OLD}a\nend\n"


def test_standard_streams_have_names():
    names = ("/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/fd/17", "/proc/thread-self/fd/3", "out")
    assert [descriptor_of(name) for name in names] == [0, 1, 2, 17, 3, None]


def test_a_socket_is_written_and_what_is_open_for_reading_is_refused(path):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        check_writable(f"/dev/fd/{ours.fileno()}")
        with opened(f"/dev/fd/{ours.fileno()}") as write:
            write(["a\n"])
        assert theirs.recv(9) == b"a\n"
    with path.open() as file, pytest.raises(UserError, match="cannot be written: it is open for reading only; choose"):
        check_writable(f"/dev/fd/{file.fileno()}")


def test_a_pipe_without_a_path_is_written(tmp_path):
    """/dev/fd/N of a pipe leads to a name that does not exist."""
    reader, writer = os.pipe()
    with opened(f"/dev/fd/{writer}") as write:
        write(["a\n"])
    os.close(writer)
    with os.fdopen(reader) as file:
        assert file.read() == "a\n"


def test_an_error_before_the_first_results_leaves_the_file(path):
    with pytest.raises(UserError, match="wrong"), opened(str(path)):
        raise UserError("wrong")
    assert path.read_text() == OLD


def test_no_results_are_an_empty_file(path):
    with opened(str(path)):
        pass
    assert path.read_text() == ""


def test_what_is_kept_stays_and_what_follows_goes(path):
    with opened(str(path), keep=6) as write:
        write(["new\n"])
    assert path.read_text() == "old 1\nnew\n"


@pytest.mark.parametrize("room", range(12))
def test_a_full_disk_leaves_whole_results(path, monkeypatch, room):
    """`room` bytes fit after those of the first call; results of 2, 4 and 4 bytes."""
    real = os.write
    left = [100]

    def write_some(file, data):
        count = min(left[0], len(data), 3)  # and never much at once
        if count == 0 and len(data):
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= count
        return real(file, bytes(data[:count]))

    monkeypatch.setattr(output.os, "write", write_some)
    parts = ["a\n", "b\nb\n", "c\nc\n"]
    whole = ["", "", "a\n", "a\n", "a\n", "a\n", "a\nb\nb\n", "a\nb\nb\n", "a\nb\nb\n", "a\nb\nb\n"]
    with opened(str(path)) as write:
        write(["first\n"])
        left[0] = room
        if room < 10:
            why = "No space left on device; free disk space .* --resume continues"
            with pytest.raises(UserError, match=f"^--output={path} cannot be written: {why}"):
                write(parts)
            assert path.read_text() == "first\n" + whole[room]
        else:
            write(parts)
            assert path.read_text() == "first\n" + "".join(parts)


def test_an_interrupt_waits_for_the_write(path, monkeypatch):
    real = os.write
    calls = []

    def interrupted(file, data):
        calls.append(len(data))
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return real(file, bytes(data[:3]))

    monkeypatch.setattr(output.os, "write", interrupted)
    with opened(str(path)) as write, pytest.raises(KeyboardInterrupt):
        write(["first\n", "second\n", "third\n"])
    assert len(calls) > 2
    assert path.read_text() == "first\nsecond\nthird\n"


def test_writing_is_tried_beforehand_and_changes_nothing(path, tmp_path):
    check_writable("-")
    check_writable("/dev/null")
    check_writable(str(path))
    check_writable(str(tmp_path / "new"))
    assert path.read_text() == OLD
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_writable(str(pipe))  # would wait for a reader


def test_what_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(UserError, match=f"^--output={tmp_path} cannot be written: Is a directory; choose another file"):
        check_writable(str(tmp_path))
    with pytest.raises(UserError, match=r"/no/out cannot be written: No such file or directory; choose another file$"):
        check_writable(str(tmp_path / "no" / "out"))


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_device_that_is_full_is_a_sentence():
    rest = r"No space left on device; free disk space or choose another file$"  # nothing of it can be resumed
    with (
        pytest.raises(UserError, match=rf"^--output=/dev/full cannot be written: {rest}"),
        opened("/dev/full") as write,
    ):
        write(["a\n"])


def test_standard_output_gets_the_same(capfdbinary):
    with opened("-") as write:
        write(["ä\n", "b\n"])
    assert capfdbinary.readouterr().out == "ä\nb\n".encode()


def test_only_files_can_be_resumed(tmp_path):
    (tmp_path / "out").touch()
    assert [can_be_resumed(str(name)) for name in (tmp_path / "out", tmp_path / "new", "-", "/dev/null")] == [
        True,
        True,
        False,
        False,
    ]
