"""Odd text through decoding: each line gives one line, nothing dies, and a second pass gives the same bytes."""

import json
import random
from collections.abc import Sequence

import pytest

from convs2s_jax.core.errors import UserError
from tests.translation.conftest import LINES
from tests.translation.desk import Desk

pytestmark = pytest.mark.usefixtures("quick")

SEED = 20261122
CONTROLS = [chr(i) for i in range(32) if i != 10] + [chr(i) for i in range(127, 160)]
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


def odd_lines(rng: random.Random, count: int) -> list[str]:
    """Lines of controls, marks, symbols, scripts and words; some are empty, some of one huge token, some very long."""
    words = [*" ".join(LINES).split(), " ", "  ", "\t"]
    pools = [CONTROLS, BREAKS, MARKS, SYMBOLS, SCRIPTS, words]

    def one() -> str:
        kind = rng.random()
        if kind < 0.05:
            return ""
        if kind < 0.1:
            return rng.choice(rng.choice(pools)) * rng.randint(1, 300)
        if kind < 0.102:
            return rng.choice(rng.choice(pools)) * 20_000
        if kind < 0.3:
            return "".join(
                chr(rng.choice([rng.randrange(11, 0xD800), rng.randrange(0xE000, 0x110000)])) for _ in "x" * 8
            )
        return rng.choice(["", " "]).join(rng.choice(rng.choice(pools)) for _ in range(rng.randint(1, 12)))

    return [one() for _ in range(count)]


def losses(desk: Desk, lines: Sequence[str], **options) -> int:
    """How many lines of a file have no line of their own, in text and JSON, in two passes."""
    (desk.folder / "in").write_bytes("".join(f"{line}\n" for line in lines).encode())
    lines = [line.removesuffix("\r") for line in lines]  # \r\n ends a line as well
    lines[0] = lines[0].removeprefix("\ufeff")
    more = {"search": {"beam_size": 1, "max_length_a": 0.0, "max_length_b": 4}, "batch_size": 256, **options}
    desk.decode(**more, output="text")
    desk.decode(**more, format="json", output="first")
    desk.decode(**more, format="json", output="second")
    texts, records = (desk.read(name).decode().split("\n")[:-1] for name in ("text", "first"))
    if len(texts) != len(lines) or len(records) != len(lines) or desk.read("first") != desk.read("second"):
        return len(lines)
    lost = 0
    for i, (line, text, record) in enumerate(zip(lines, texts, map(json.loads, records), strict=True)):
        best = record["hypotheses"][0]["text"].replace("\n", " ")
        lost += (record["line"], record["source"], best) != (i, line, text)
        lost += not line and text != ""
    return lost


@pytest.mark.parametrize("options", [{}, {"replace_unk": True}], ids=str)
def test_each_odd_line_gives_one_line(desk, options):
    assert losses(desk, odd_lines(random.Random(SEED), 200), **options) == 0


@pytest.mark.drill
@pytest.mark.parametrize("options", [{}, {"replace_unk": True}], ids=str)
def test_many_odd_lines_give_one_line_each(desk, options, tally):
    """50,000 lines without and 50,000 with replacement of unknown words, each in three passes."""
    rng = random.Random(SEED + len(options))
    tally(tries=50_000, losses=losses(desk, odd_lines(rng, 50_000), **options))


@pytest.mark.parametrize(
    "bad", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", "ä".encode("utf-16")], ids=repr
)
def test_bytes_that_are_no_text_are_named_with_their_line(desk, bad):
    """Lone surrogates, other encodings, torn characters: one sentence, and nothing is written."""
    (desk.folder / "in").write_bytes(b"Norway\n5 " + bad + b"\nx\n")
    with pytest.raises(UserError, match=r"^.*/in, line 2: byte 0x.. is not UTF-8; convert the file, for example with"):
        desk.decode()
    assert not (desk.folder / "out").exists()
