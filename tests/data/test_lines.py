"""Lines on disk are the lines of a list."""

import itertools
import pickle

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.data import lines
from convs2s_jax.data.lines import Writer

TEXT = ["", "eins zwei", "größer\r", "\u2028 \x85", "", "日本語", *map(str, range(9000)), ""]


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A text of a few lines more than is kept in memory, added in uneven parts."""
    monkeypatch.setattr(lines, "FEW", 7)
    writer, parts = Writer(tmp_path / "cache"), iter(TEXT)
    counts = [writer.extend(itertools.islice(parts, size)) for size in (1, 0, 7, 5000, len(TEXT))]
    assert counts == [1, 0, 7, 5000, len(TEXT) - 5008]
    return writer.lines()


def test_lines_are_read_by_number_in_slices_and_in_order(stored):
    for copy in (stored, pickle.loads(pickle.dumps(stored))):
        assert list(copy) == TEXT
        assert len(copy) == len(TEXT)
        assert lines.digest(copy) == lines.digest(TEXT) != lines.digest(TEXT[:-1])
        for i in (0, 2, 3, 4097, -1, -len(TEXT)):
            assert copy[i] == TEXT[i]
        for part in (slice(2, 5), slice(None), slice(5, 5), slice(-2, None), slice(0, 100, 7), slice(9, 2, -3)):
            assert copy[part] == TEXT[part]
        for i in (len(TEXT), -len(TEXT) - 1):
            with pytest.raises(IndexError):
                copy[i]


def test_files_go_with_the_lines_and_those_of_a_killed_process_with_the_next(stored, tmp_path):
    [own] = (tmp_path / "cache").iterdir()
    killed = own.with_name(f"{lines._PREFIX}4194999-x")  # above the largest process number
    killed.mkdir()
    (killed / "text").write_text("")
    writer = Writer(tmp_path / "cache")
    writer.extend(TEXT)
    other = writer.lines()
    assert not killed.exists()
    assert list(stored) == list(other)
    assert len([*(tmp_path / "cache").iterdir()]) == 2
    del other, writer
    assert [*(tmp_path / "cache").iterdir()] == [own]


def test_few_lines_stay_in_memory(tmp_path):
    for folder in (None, tmp_path / "cache"):
        writer = Writer(folder)
        writer.extend(TEXT)
        assert writer.lines() == TEXT
    assert not (tmp_path / "cache").exists()


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "FEW", 7)
    (tmp_path / "cache").write_text("")
    with pytest.raises(UserError, match=r"cache cannot be written: File exists; choose another data\.cache_dir$"):
        Writer(tmp_path / "cache").extend(TEXT)
