"""Lines of text files: what stands in them, or one sentence that says what is wrong, in bounded memory."""

import bz2
import gzip
import io
import lzma
import os
import re
import sys
import tracemalloc
import zlib

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.data import text_files
from convs2s_jax.data.text_files import LONGEST, read_lines


def as_input(monkeypatch, data):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), "latin-1"))


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"", []),
        (b"\n", [""]),
        (b"a\nb", ["a", "b"]),
        (b"a\r\n\r\n b \n", ["a", "", " b "]),
        ("a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\rh\n".encode(), ["a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\rh"]),
        ("\ufeffa\n\ufeffb\n".encode(), ["a", "\ufeffb"]),
        ("größer\u202f\u00a0\n".encode(), ["größer\u202f\u00a0"]),
        (gzip.compress(b"a\n") + gzip.compress(b"b\n"), ["a", "b"]),
        *((text.encode(), [text]) for text in ("BZh", "BZh91 is a header", "(µ/ý")),  # like compressed files
    ],
)
@pytest.mark.parametrize("size", [1, 2, 5, 1 << 22])
def test_only_newlines_end_a_line(tmp_path, monkeypatch, data, lines, size):
    """Plain or gzipped, from files and standard input, however much is read at once."""
    gzipped = data.startswith(b"\x1f\x8b")
    monkeypatch.setattr(text_files, "_CHUNK", max(size, 2) if gzipped else size)
    (tmp_path / "x.de").write_bytes(data)
    assert read_lines(tmp_path / "x.de") == lines
    as_input(monkeypatch, data)
    assert read_lines("-") == lines
    if size > 1 and not gzipped:
        (tmp_path / "x.de.gz").write_bytes(gzip.compress(data, mtime=0))
        assert read_lines(tmp_path / "x.de.gz") == lines


@pytest.mark.parametrize("size", [1, 3, 1 << 22])
def test_bytes_that_are_not_utf8_are_named_with_their_line(tmp_path, monkeypatch, size):
    monkeypatch.setattr(text_files, "_CHUNK", size)
    (tmp_path / "x.de").write_bytes("ä\nb\n".encode() + b"gr\xfcn\n")
    with pytest.raises(UserError, match=r"x.de, line 3: byte 0xfc is not UTF-8; convert the file"):
        read_lines(tmp_path / "x.de")
    (tmp_path / "x.de").write_bytes("a\nö".encode()[:-1])
    with pytest.raises(UserError, match=r"x\.de, line 2: byte 0xc3 is not UTF-8"):
        read_lines(tmp_path / "x.de")
    as_input(monkeypatch, b"\xff\xfea\0")
    with pytest.raises(UserError, match=r"^standard input, line 1: byte 0xff is not UTF-8"):
        read_lines("-")


ZIPPED = gzip.compress(bytes(range(97, 123)) * 3)


@pytest.mark.parametrize(
    "data", [ZIPPED[:-9], ZIPPED[:-1], ZIPPED[:10] + b"\xff" + ZIPPED[11:], ZIPPED[:-8] + b"\0" * 8, b"plain"]
)
def test_damaged_gzip_is_refused(tmp_path, data):
    (tmp_path / "x.de.gz").write_bytes(data)
    with pytest.raises(UserError, match=r"x\.de\.gz is not a complete gzip file \(.*\): copy it again"):
        read_lines(tmp_path / "x.de.gz")


# what the programs bzip2, xz and zstd make of "eins\nzwei\n", and bzip2 of nothing
COMPRESSED = {
    "bzip2": bz2.compress(b"eins\nzwei\n"),
    "xz": lzma.compress(b"eins\nzwei\n"),
    "zstandard": bytes.fromhex("28b52ffd045851000065696e730a7a7765690ae1de44fc"),
    "bzip2 ": bz2.compress(b""),
}


@pytest.mark.parametrize("how", COMPRESSED)
@pytest.mark.parametrize("name", ["x.gz", "-"])
def test_other_compressions_are_named(tmp_path, monkeypatch, how, name):
    path = tmp_path / name
    path.write_bytes(COMPRESSED[how])
    as_input(monkeypatch, COMPRESSED[how])
    shown = "standard input" if name == "-" else str(path)
    with pytest.raises(UserError, match=f"^{shown} is compressed with {how.strip()}: decompress it, or use gzip$"):
        read_lines(name if name == "-" else path)


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
AGAIN = " is a device or a pipe: choose a text file, which can be read again"
ODD = {
    "a folder": (lambda path: path.mkdir(), " is a folder: choose a text file"),
    "nothing": (lambda _: None, " cannot be read: No such file or directory; choose a text file"),
    "a loop": (lambda path: path.symlink_to(path), " cannot be read: Too many levels of symbolic links; choose a text"),
    "zeros": (lambda path: path.symlink_to("/dev/zero"), LONG),
    "memory": (lambda path: path.symlink_to("/proc/self/mem"), " cannot be read: Input/output error; choose a text"),
    "4 terabytes": (sparse, LONG),
    "a long line": (lambda path: path.write_text("a" * (LONGEST + 1)), LONG),
    "noise": (lambda path: path.symlink_to("/dev/urandom"), ", line "),
    "a bomb": (bomb, " unpacks to more than 200 times its size, which is unlikely for text; if it is text,"),
    "a pipe": (os.mkfifo, AGAIN),
    "a device": (lambda path: path.symlink_to("/dev/null"), AGAIN),
}


@pytest.mark.parametrize("name", ODD)
def test_what_stands_in_place_of_a_text_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr(text_files, "_BOMB", 1 << 23)
    make, sentence = ODD[name]
    make(tmp_path / "x")
    tracemalloc.start()
    try:
        with pytest.raises(UserError, match=f"^{re.escape(f'{tmp_path}/x{sentence}')}"):
            read_lines(tmp_path / "x", again=sentence == AGAIN)
        assert name == "noise" or tracemalloc.get_traced_memory()[1] < 200e6
    finally:
        tracemalloc.stop()


def test_what_cannot_be_opened_is_refused(tmp_path, monkeypatch):
    for name, why in (("n" * 5000, "File name too long"), ("a\0b", "embedded null")):
        with pytest.raises(UserError, match=f"cannot be read: .*{why}.*; choose a text file"):
            read_lines(name)
    number = os.open(tmp_path / "x", os.O_WRONLY | os.O_CREAT)  # what nohup puts in the place of the terminal
    with io.TextIOWrapper(io.BufferedReader(io.FileIO(number))) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        with pytest.raises(UserError, match=r"^standard input cannot be read: Bad file descriptor; choose a text file"):
            read_lines("-")
