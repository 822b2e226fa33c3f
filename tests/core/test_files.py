"""A file is the old one or the whole new one, whatever happens; a folder is there as a whole or not at all."""

import pytest

from convs2s_jax.core.files import new_folder, replace_file, replacing


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


def test_what_cannot_take_the_place_is_cleared_away(tmp_path):
    (tmp_path / "x").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path / "x", "text")
    assert [entry.name for entry in tmp_path.iterdir()] == ["x"]


def test_a_folder_that_was_not_put_in_place_is_removed(tmp_path):
    with new_folder(tmp_path / "sub" / "x") as part:
        (part / "file").write_text("text")
    assert list((tmp_path / "sub").iterdir()) == []
    with new_folder(tmp_path / "sub" / "x") as part:
        (part / "file").write_text("text")
        part.rename(tmp_path / "sub" / "x")
    assert (tmp_path / "sub" / "x" / "file").read_text() == "text"
