"""Lines of text files: what stands in them, or one sentence that says what is wrong."""

import bz2
import gzip
import io
import lzma
import os
import re
import sys

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.data import text_files
from convs2s_jax.data.text_files import read_lines


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
        ("\ufeff".encode(), []),
        ("größer\u202f\u00a0\n".encode(), ["größer\u202f\u00a0"]),
        (gzip.compress(b"a\n", mtime=0) + gzip.compress(b"b\n", mtime=0), ["a", "b"]),
    ],
)
def test_only_newlines_end_a_line(tmp_path, monkeypatch, data, lines):
    """Plain or gzipped, from files and standard input."""
    (tmp_path / "x.de").write_bytes(data)
    assert read_lines(tmp_path / "x.de") == lines
    as_input(monkeypatch, data)
    assert read_lines("-") == lines
    if not data.startswith(b"\x1f\x8b"):
        for end, compress in (("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)):
            for name in (f"x.de.{end}", "named otherwise"):
                (tmp_path / name).write_bytes(compress(data))
                assert read_lines(tmp_path / name, again=True) == lines


def test_zstandard_files_are_read_where_its_library_is_installed(tmp_path, monkeypatch):
    path = tmp_path / "x.de.zst"
    path.write_bytes(b"\x28\xb5\x2f\xfd")
    with monkeypatch.context() as absent:
        absent.setitem(sys.modules, "backports.zstd", None)
        absent.setitem(sys.modules, "compression.zstd", None)
        with pytest.raises(UserError, match=r"needs backports\.zstd: pip install '.\[formats\]'$"):
            read_lines(path)
    zstd = pytest.importorskip("backports.zstd")
    whole = zstd.compress(b"a\n") + zstd.compress("größer\n".encode())
    path.write_bytes(whole)
    assert read_lines(path) == ["a", "größer"]
    for damaged in (whole[:4], whole[:-3], b"plain", whole + b"x"):
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"x.de.zst is not a complete zstd file \(.*\): copy it again, or rename"):
            read_lines(path)


ZIPPED = gzip.compress(bytes(range(97, 123)) * 3, mtime=0)
NO_GZIP = " is not a complete gzip file"
AGAIN = " cannot be read: it is a device or a pipe, not a file; choose a text file"
ODD = {
    "a folder": (lambda path: path.mkdir(), " cannot be read: Is a directory; choose a text file"),
    "nothing": (lambda _: None, " cannot be read: No such file or directory; choose a text file"),
    "a loop": (lambda path: path.symlink_to(path), " cannot be read: Too many levels of symbolic links; choose a text"),
    "memory": (lambda path: path.symlink_to("/proc/self/mem"), " cannot be read: Input/output error; choose a text"),
    "a pipe": (os.mkfifo, AGAIN),
    "a device": (lambda path: path.symlink_to("/dev/null"), AGAIN),
    "latin-1": (
        lambda path: path.write_bytes("ä\nb\n".encode() + b"gr\xfcn\n"),
        ", line 3: byte 0xfc is not UTF-8; con",
    ),
    "no end": (
        lambda path: path.write_bytes(b"a\n" + bytes(text_files.LONGEST + 1)),
        ", line 2 has more than 16,777,216 bytes",
    ),
    "cut": (lambda path: path.write_bytes("a\nö".encode()[:-1]), ", line 2: byte 0xc3 is not UTF-8"),
    "cut.bz2": (lambda path: path.write_bytes(bz2.compress(b"a\n")[:-3]), " is not a complete bzip2 file"),
    "cut.xz": (lambda path: path.write_bytes(lzma.compress(b"a\n")[:-3]), " is not a complete xz file"),
    "plain.xz": (
        lambda path: path.write_bytes(b"plain"),
        r" is not a complete xz file \(.*\): copy it again, or rename",
    ),
    "utf-16le": (
        lambda path: path.write_bytes("\nab\n".encode("utf-16le")),
        ", line 2: it contains NUL, .*: the file is UTF-16: convert it with iconv -f utf-16le -t utf-8$",
    ),
    "utf-16be": (
        lambda path: path.write_bytes("\nab\n".encode("utf-16be")),
        ", line 1: it contains NUL, .*: the file is UTF-16: convert it with iconv -f utf-16be -t utf-8$",
    ),
    "a NUL": (
        lambda path: path.write_bytes(b"a\nbcdefgh\0\n"),
        r", line 2: it contains NUL, which no text does: delete NULs, as with tr -d '\\000'$",
    ),
    "cut.gz": (lambda path: path.write_bytes(ZIPPED[:-9]), NO_GZIP),
    "short.gz": (lambda path: path.write_bytes(ZIPPED[:-1]), NO_GZIP),
    "damaged.gz": (lambda path: path.write_bytes(ZIPPED[:10] + b"\xff" + ZIPPED[11:]), NO_GZIP),
    "checksum.gz": (lambda path: path.write_bytes(ZIPPED[:-8] + b"\0" * 8), NO_GZIP),
    "plain.gz": (lambda path: path.write_bytes(b"plain"), rf"{NO_GZIP} \(.*\): copy it again, or rename it"),
}


@pytest.mark.parametrize("name", ODD)
def test_what_stands_in_place_of_a_text_is_refused(tmp_path, name):
    make, sentence = ODD[name]
    make(tmp_path / name)
    with pytest.raises(UserError, match=f"^{re.escape(str(tmp_path / name))}{sentence}"):
        read_lines(tmp_path / name, again=sentence == AGAIN)


def test_what_cannot_be_opened_is_refused(tmp_path, monkeypatch):
    for name, why in (("n" * 5000, "File name too long"), ("a\0b", "embedded null")):
        with pytest.raises(UserError, match=f"cannot be read: .*{why}.*; choose a text file"):
            read_lines(name)
    number = os.open(tmp_path / "x", os.O_WRONLY | os.O_CREAT)  # what nohup puts in the place of the terminal
    with io.TextIOWrapper(io.BufferedReader(io.FileIO(number))) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        with pytest.raises(UserError, match=r"^standard input cannot be read: .*; choose a text file"):
            read_lines("-")
