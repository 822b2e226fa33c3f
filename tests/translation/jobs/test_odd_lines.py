"""Odd text through decoding: each line gives one line, nothing dies, and a second pass gives the same bytes."""

import json
import random
from collections.abc import Sequence

import pytest

from convs2s_jax.core.errors import UserError
from tests.odd_lines import NO_TEXT, as_read, odd_lines
from tests.translation.conftest import LINES
from tests.translation.desk import Desk

pytestmark = pytest.mark.usefixtures("quick")

SEED = 20261122
WORDS = " ".join(LINES).split()


def losses(desk: Desk, lines: Sequence[str], **options) -> int:
    """How many lines of a file have no line of their own, in text and JSON, in two passes."""
    (desk.folder / "in").write_bytes("".join(f"{line}\n" for line in lines).encode())
    lines = as_read(lines)
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
    assert losses(desk, odd_lines(random.Random(SEED), 200, WORDS), **options) == 0


@pytest.mark.drill
@pytest.mark.parametrize("options", [{}, {"replace_unk": True}], ids=str)
def test_many_odd_lines_give_one_line_each(desk, options, tally):
    """50,000 lines without and 50,000 with replacement of unknown words, each in three passes."""
    rng = random.Random(SEED + len(options))
    tally(tries=50_000, losses=losses(desk, odd_lines(rng, 50_000, WORDS), **options))


@pytest.mark.parametrize("bad", NO_TEXT, ids=repr)
def test_bytes_that_are_no_text_are_named_with_their_line(desk, bad):
    """Lone surrogates, other encodings, torn characters: one sentence, and nothing is written."""
    (desk.folder / "in").write_bytes(b"Norway\n5 " + bad + b"\nx\n")
    with pytest.raises(UserError, match=r"^.*/in, line 2: byte 0x.. is not UTF-8; convert the file, for example with"):
        desk.decode()
    assert not (desk.folder / "out").exists()
