"""White space and invisible characters, against Unicode's own categories."""

import unicodedata

from convs2s_jax.core.text import odd_of, visible
from tests.odd_lines import EVERY, GONE, JOINERS, WHITE


def test_white_space_is_a_space_and_what_is_invisible_is_gone():
    """Everything else stays, and so does what joins letters or emoji, but not by itself."""
    for characters, shown in ((WHITE, " "), (GONE, "")):
        assert [c for c in characters if visible(f"a{c}b") != f"a{shown}b" or visible(f" {c}{c}")] == []
    assert [c for c in JOINERS if visible(f"a{c}b") != f"a{c}b" or visible(f"\xa0{c}{c}")] == []
    rest = "".join(c for c in EVERY if c not in {*WHITE, *GONE} and unicodedata.category(c) != "Cn")
    assert visible(rest) == rest


def test_what_a_vocabulary_contains_stays_beside_other_text():
    assert odd_of(["a\xa0", "\u2581b", "c d", "\u200d"]) == {"\xa0"}
    assert visible("a\xa0b\u2009\xadc", {"\xa0"}) == "a\xa0b c"
    assert visible("\xa0", {"\xa0"}) == ""
