"""Odd lines of text for fuzzing: what a file may hold between two ends of lines."""

import random
import sys
import unicodedata
from collections.abc import Sequence

CONTROLS = [chr(i) for i in range(1, 32) if i != 10] + [chr(i) for i in range(127, 160)]
BREAKS = ["\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\r", "\r\r"]  # no ends of lines here
MARKS = ["\ufeff", "\u200b", "\u200d", "\u202e", "\u0301" * 30, "\ufdd2", "\uffff", "\U0010ffff", "\ue000", "▁", "▁▁"]
SYMBOLS = ["<s>", "</s>", "<pad>", "<unk>", "S-0\t", "D-0\t1\t", "NaN", '{"line": 0}', "\\n", "\\u0000", "%s", "--"]
SCRIPTS = [
    "中文字",
    "日本語テキスト",
    "ไทย",
    "עברית",
    "العربية",
    "한국어",
    "Ελληνικά",
    "👩‍👩‍👧‍👦",
    "🇩🇪",
    "ﬁ",
    "ß",
    "İı",
]
SEEN = [chr(i) for i in (*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD)]
"""Format characters that are signs before numbers and words (Prepended_Concatenation_Mark)."""
JOINERS = [chr(i) for i in (0x200C, 0x200D, *range(0x13430, 0x13440), *range(0xE0020, 0xE0080))]
EVERY = [chr(i) for i in range(sys.maxunicode + 1) if not 0xD800 <= i < 0xE000]
WHITE = [c for c in EVERY if unicodedata.category(c)[0] == "Z" or c.isspace()] + ["\u200b"]
GONE = [c for c in EVERY if unicodedata.category(c) == "Cf" and c not in {*SEEN, *JOINERS, "\u200b"}]
NO_TEXT = [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", "ä".encode("utf-16")]
"""Bytes that are not UTF-8: torn characters, lone surrogates, other encodings."""


def odd_lines(rng: random.Random, count: int, words: Sequence[str], *, longest: int = 20_000) -> list[str]:
    """Lines of controls, marks, symbols, scripts and words; some are empty, some of one huge token, some very long.

    Args:
      rng: source of all choices.
      count: number of lines.
      words: ordinary words to mix in.
      longest: most repetitions of a piece in a very long line.
    """
    pools = [CONTROLS, BREAKS, MARKS, SYMBOLS, SCRIPTS, [*words, " ", "  ", "\t"]]

    def one() -> str:
        kind = rng.random()
        if kind < 0.05:
            return ""
        if kind < 0.1:
            return rng.choice(rng.choice(pools)) * rng.randint(1, 300)
        if kind < 0.102:
            return rng.choice(rng.choice(pools)) * longest
        if kind < 0.3:
            return "".join(
                chr(rng.choice([rng.randrange(11, 0xD800), rng.randrange(0xE000, 0x110000)])) for _ in "x" * 8
            )
        return rng.choice(["", " "]).join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 12)))

    return [one() for _ in range(count)]


def as_read(lines: Sequence[str]) -> list[str]:
    r"""What a file of these lines holds: \r\n ends a line as well, and a first U+FEFF is a byte order mark."""
    found = [line.removesuffix("\r") for line in lines]
    return [found[0].removeprefix("\ufeff"), *found[1:]]
