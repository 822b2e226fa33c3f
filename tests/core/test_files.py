"""A file is the old one or the whole new one, whatever happens; a folder is there as a whole or not at all."""

import os
import re

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.core.files import content, new_folder, read_json, replace_file, replacing


def test_a_file_is_replaced_by_text_or_bytes(tmp_path):
    path = tmp_path / "x"
    replace_file(path, "größer\n")
    assert path.read_bytes() == "größer\n".encode()
    replace_file(path, b"\xff")
    assert path.read_bytes() == b"\xff"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "x"
    path.write_text("old")

    def interrupted():
        with replacing(path) as part:
            part.write_text("half of the n")
            assert path.read_text() == "old"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        interrupted()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_was_not_put_in_place_is_removed(tmp_path):
    with new_folder(tmp_path / "sub" / "x") as part:
        (part / "file").write_text("text")
    assert list((tmp_path / "sub").iterdir()) == []
    with new_folder(tmp_path / "sub" / "x") as part:
        (part / "file").write_text("text")
        part.rename(tmp_path / "sub" / "x")
    assert (tmp_path / "sub" / "x" / "file").read_text() == "text"


def make_fifo(path):
    os.mkfifo(path)


def make_sparse(path):
    with path.open("wb") as file:
        file.truncate(1 << 42)


ODD = {
    "missing": (str, "cannot be read: No such file or directory; restore it"),
    "folder": (lambda path: path.mkdir(), "cannot be read: it is a folder, not a file; restore it"),
    "pipe": (make_fifo, "cannot be read: it is a device or a pipe, not a file; restore it"),
    "memory": (lambda path: path.symlink_to("/proc/self/mem"), "cannot be read: Input/output error; restore it"),
    "4 terabytes": (
        make_sparse,
        "cannot be read: it has more than 268,435,456 bytes, too many for such a file; restore it",
    ),
    "latin-1": (lambda path: path.write_bytes(b"a\ngr\xfcn"), r", line 2: byte 0xfc is not UTF-8; restore it"),
    "half": (
        lambda path: path.write_text('{"a": '),
        "is not JSON (Expecting value: line 1 column 7 (char 6)); restore it",
    ),
    "lists": (lambda path: path.write_text("[" * 10**6), "is not JSON (maximum recursion depth exceeded"),
    "digits": (lambda path: path.write_text("1" * 5000), "is not JSON (an integer has 5000 digits"),
}


@pytest.mark.parametrize("name", ODD)
def test_what_stands_in_place_of_a_json_file_is_refused_in_one_sentence(tmp_path, name):
    make, sentence = ODD[name]
    make(tmp_path / "x.json")
    with pytest.raises(UserError, match=f"^{re.escape(f'{tmp_path}/x.json')} ?{re.escape(sentence)}"):
        read_json(tmp_path / "x.json", remedy="restore it")


def test_a_file_is_read_as_a_whole_up_to_a_size(tmp_path):
    (tmp_path / "x.json").write_bytes(b"\xef\xbb\xbf" + '{"größer": [1, 2.5, null]}'.encode())
    assert read_json(tmp_path / "x.json", remedy="") == {"größer": [1, 2.5, None]}
    (tmp_path / "x").write_bytes(b"abc")
    assert content(tmp_path / "x", most=3) == b"abc"
    with pytest.raises(OSError, match="it has more than 2 bytes"):
        content(tmp_path / "x", most=2)
