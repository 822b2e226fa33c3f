"""Files that are parallel to the source, and dictionaries."""

import gzip

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.translation.jobs import inputs

LINES = ["1 2", "", "3"]


def file(folder, text):
    path = folder / "wishes"
    path.write_text(text)
    return str(path)


def test_a_line_for_each_line(tmp_path):
    path = file(tmp_path, "a\n\nb\n")
    assert inputs.read_parallel(path, LINES, name="in", what="prefix") == ["a", "", "b"]
    zipped = tmp_path / "wishes.gz"
    zipped.write_bytes(gzip.compress(b"a\n\nb\n"))
    assert inputs.read_parallel(str(zipped), LINES, name="in", what="prefix") == ["a", "", "b"]


def test_other_numbers_of_lines_are_refused(tmp_path):
    path = file(tmp_path, "a\n")
    with pytest.raises(UserError, match=f"^in has 3 lines, but {path} has 1: each line needs its prefix$"):
        inputs.read_parallel(path, LINES, name="in", what="prefix")


def test_an_unreadable_line_is_named(tmp_path):
    path = tmp_path / "wishes"
    path.write_bytes(b"a\nb\xff\nc\n")
    with pytest.raises(UserError, match=f"^{path}, line 2: byte 0xff is not UTF-8"):
        inputs.read_parallel(str(path), LINES, name="in", what="prefix")


def test_phrases_stand_between_tabs():
    assert inputs.phrases_of(["ein Haus\tda", "", "\tHaus\t \t"]) == [["ein Haus", "da"], [], ["Haus"]]


def test_a_dictionary_has_a_pair_on_each_line(tmp_path):
    path = file(tmp_path, "Haus\thouse\n\nder Hund\t the dog \nHaus\thouse\n")
    assert inputs.read_dictionary(path) == {"Haus": "house", "der Hund": "the dog"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Haus house\n", "line 1: 'Haus house' is not a source word, TAB, a target word$"),
        ("a\tb\nHaus\t\n", r"line 2: 'Haus\\t' is not"),
        ("a\tb\tc\n", "line 1: .* is not a source word"),
        ("a\tb\na\tc\n", "line 2: 'a' has another target word above; remove one of the two$"),
    ],
)
def test_other_lines_are_refused(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        inputs.read_dictionary(file(tmp_path, text))
