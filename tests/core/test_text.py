"""White space and invisible characters, against Unicode's own categories."""

import unicodedata

from convs2s_jax.core.text import odd_of, visible

SEEN = {chr(i) for i in (*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD)}
"""Format characters that are signs before numbers and words (Prepended_Concatenation_Mark)."""
JOINERS = {chr(i) for i in (0x200C, 0x200D, *range(0x13430, 0x13440), *range(0xE0020, 0xE0080))}
EVERY = [chr(i) for i in range(0x110000) if not 0xD800 <= i < 0xE000]


def test_white_space_is_a_space_and_what_is_invisible_is_gone():
    """Everything else stays, and so does what joins letters or emoji, but not by itself."""
    kinds = {c: unicodedata.category(c) for c in EVERY}
    white = {c for c, kind in kinds.items() if kind[0] == "Z" or c.isspace()} | {"\u200b"}
    gone = {c for c, kind in kinds.items() if kind == "Cf"} - SEEN - JOINERS - white
    for characters, shown in ((white, " "), (gone, "")):
        assert [c for c in characters if visible(f"a{c}b") != f"a{shown}b" or visible(f" {c}{c}")] == []
    assert [c for c in JOINERS if visible(f"a{c}b") != f"a{c}b" or visible(f"\xa0{c}{c}")] == []
    rest = "".join(c for c in EVERY if c not in white | gone and kinds[c] != "Cn")
    assert visible(rest) == rest


def test_what_a_vocabulary_contains_stays_beside_other_text():
    assert odd_of(["a\xa0", "\u2581b", "c d", "\u200d"]) == {"\xa0"}
    assert visible("a\xa0b\u2009\xadc", {"\xa0"}) == "a\xa0b c"
    assert visible("\xa0", {"\xa0"}) == ""
