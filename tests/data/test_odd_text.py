"""What stands in place of a text, a word list or a list of labels is refused in one sentence, in bounded memory."""

import gzip
import io
import os
import re
import sys
import tracemalloc
import zlib

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.data import text_files
from convs2s_jax.data.text_files import LONGEST, read_lines


def sparse(path):
    with path.open("wb") as file:
        file.truncate(1 << 42)


def bomb(path):
    """64 megabytes of empty lines in 64 kilobytes."""
    packer = zlib.compressobj(wbits=31)
    with path.open("wb") as file:
        for _ in range(1 << 4):
            file.write(packer.compress(b"\n" * (1 << 22)))
        file.write(packer.flush())


LONG = f", line 1 has more than {LONGEST:,} characters: use a text file with one sentence per line"
AGAIN = "is a device or a pipe: choose a text file, which can be read again"
ODD = {
    "loop": (
        lambda path: path.symlink_to(path),
        "cannot be read: Too many levels of symbolic links; choose a text file",
    ),
    "zeros": (lambda path: path.symlink_to("/dev/zero"), LONG),
    "full": (lambda path: path.symlink_to("/dev/full"), LONG),
    "memory": (
        lambda path: path.symlink_to("/proc/self/mem"),
        "cannot be read: Input/output error; choose a text file",
    ),
    "4 terabytes": (sparse, LONG),
    "long": (lambda path: path.write_text("a" * (LONGEST + 1)), LONG),
    "noise": (lambda path: path.symlink_to("/dev/urandom"), ", line "),
}


@pytest.mark.parametrize("name", ODD)
def test_what_stands_in_place_of_a_text_is_refused(tmp_path, name):
    make, sentence = ODD[name]
    make(tmp_path / "x.de")
    with pytest.raises(UserError, match=f"^{re.escape(f'{tmp_path}/x.de')} ?{re.escape(sentence)}"):
        read_lines(tmp_path / "x.de")


def test_standard_input_that_cannot_be_read_is_refused(tmp_path, monkeypatch):
    """nohup puts a file that was opened for writing only in the place of the terminal."""
    number = os.open(tmp_path / "x", os.O_WRONLY | os.O_CREAT)
    with io.TextIOWrapper(io.BufferedReader(io.FileIO(number))) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        with pytest.raises(UserError, match=r"^standard input cannot be read: Bad file descriptor; choose a text file"):
            read_lines("-")


def test_a_name_that_no_disk_allows_is_refused():
    for name, why in (("n" * 5000, "File name too long"), ("a\0b", "embedded null")):
        with pytest.raises(UserError, match=f"cannot be read: .*{why}.*; choose a text file"):
            read_lines(name)


def test_a_text_that_is_read_again_is_no_pipe(tmp_path):
    os.mkfifo(tmp_path / "x.de")
    (tmp_path / "y.de").symlink_to("/dev/null")
    for name in ("x.de", "y.de"):
        with pytest.raises(UserError, match=AGAIN):
            read_lines(tmp_path / name, again=True)
    assert read_lines(tmp_path / "y.de") == []


def test_a_file_that_unpacks_without_end_is_refused(tmp_path, monkeypatch):
    bomb(tmp_path / "x.gz")
    monkeypatch.setattr(text_files, "_BOMB", 1 << 23)
    with pytest.raises(
        UserError, match=r"x\.gz unpacks to more than 200 times its size, which is unlikely for text; if it is text,"
    ):
        read_lines(tmp_path / "x.gz")


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
def test_pieces_of_any_size_give_the_same_lines(tmp_path, monkeypatch, size, packed):
    data = "\ufeffgrößer\u2028\r\n\n\x00 \U0001f600\rx\n\r\r\n last".encode()
    whole = ["größer\u2028", "", "\x00 \U0001f600\rx", "\r", " last"]
    monkeypatch.setattr(text_files, "_CHUNK", size)
    (tmp_path / "x.de").write_bytes(gzip.compress(data, mtime=0) if packed and size > 1 else data)
    assert read_lines(tmp_path / "x.de") == whole
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data + b"\n\n\xff")))
    with pytest.raises(UserError, match="standard input, line 7: byte 0xff is not UTF-8"):
        read_lines("-")


def test_half_a_character_at_the_end_is_named_with_its_line(tmp_path):
    (tmp_path / "x.de").write_bytes("a\nö".encode()[:-1])
    with pytest.raises(UserError, match=r"x\.de, line 2: byte 0xc3 is not UTF-8"):
        read_lines(tmp_path / "x.de")


def test_the_memory_for_a_refusal_is_bounded(tmp_path):
    sparse(tmp_path / "x.de")
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match="characters"):
            read_lines(tmp_path / "x.de")
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()
