"""Odd text through training: lines stay aligned, each is kept in its tokens, and training ends with a finite loss."""

import math
import random
from pathlib import Path

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.core.tokens import UNK
from convs2s_jax.data import parallel_text
from convs2s_jax.data.text_files import read_lines
from convs2s_jax.training.run import run_folder
from convs2s_jax.training.run.checkpoints import position_file
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.prepare import Run, prepare
from tests import tiny
from tests.odd_lines import NO_TEXT, as_read, odd_lines

SEED = 20261123
WORDS = ["Norway", "5", "kilowatts", "and", "Spain", "1", "2", "3", "at", "12:30", "£5.00", "(b),", "c"]
STEPS = 4
COVERED = {"src_size": 4000, "tgt_size": 3500, "sample": 20_000, "character_coverage": 0.98}
"""Random characters are rare, so that many become <unk>; those of the scripts do not."""
LONGEST = {"words": 100_000, "bpe": 100_000, "unigram": 2000}
"""Characters of the longest lines. A unigram vocabulary takes minutes to learn from words of 100,000 characters."""
KINDS = {
    "words": {"kind": "words"},
    "bpe": {"kind": "bpe", "split_digits": True},
    "unigram": {"kind": "unigram", "joint": True, "src_size": 30_000},
}


def corpus(folder: Path, rng: random.Random, count: int, kind: str) -> dict[str, list[str]]:
    r"""Files of odd lines that end in \n or \r\n; what their lines are, by the name of the file."""
    found = {}
    for name, lines in (("train.in", count), ("train.out", count), ("valid.in", 50), ("valid.out", 50)):
        odd = odd_lines(rng, lines, WORDS, longest=300)
        for piece in ("中文字", "(b),\t", "a ", "\x85", "▁", "\u2028"):
            odd[rng.randrange(lines)] = (piece * LONGEST[kind])[: LONGEST[kind]]
        odd = [line + rng.choice(["", "", "\r"]) for line in odd]
        odd[0] = f"\ufeff{odd[0]}"
        (folder / name).write_bytes("".join(f"{line}\n" for line in odd).encode())
        found[name] = as_read(odd)
    return found


def options(folder: Path, kind: str, **more):
    sizes = {"data__batch__max_length": 60, "data__vocabulary": {**COVERED, **KINDS[kind]}}
    return tiny.config(**tiny.files(folder), **sizes, **more)


def kept(text: str, kind: str) -> str:
    """What of a line every vocabulary keeps: all but runs of spaces, of which lists of words know every white space."""
    return " ".join(text.split()) if kind == "words" else " ".join(part for part in text.split(" ") if part)


def wrong_lines(run: Run, expected: dict[str, list[str]], kind: str) -> int:
    """How many lines are not those of the files, or are not what their tokens say."""
    count, known = 0, 0
    for split, text in zip((run.train, run.valid), parallel_text.read_train_and_valid(run.cfg.data), strict=True):
        sides = [
            ("in", run.vocabularies.src, text.src, split.src),
            ("out", run.vocabularies.tgt, text.tgt, split.tgt),
        ]
        for side, vocabulary, texts, stored in sides:
            lines = expected[f"{text.name}.{side}"]
            if list(texts) != lines or len(stored) != len(lines):
                count += len(lines)
                continue
            for line, ids in zip(lines, stored, strict=True):
                told, whole = vocabulary.decode(ids.tolist()), UNK not in ids
                known += whole
                count += told != kept(line, kind) if whole else told == ""
    assert known > sum(map(len, expected.values())) / 4  # enough lines have no unknown token to be compared with
    return count


def cached(workdir: Path) -> dict[str, int]:
    """When each file of token ids was written."""
    return {path.name: path.stat().st_mtime_ns for path in (workdir / "cache").glob("*.tokens")}


def trained_twice(folder: Path, rng: random.Random, kind: str, count: int) -> int:
    """How many lines are lost, in reading, in their tokens, in a training and in its continuation from the cache."""
    expected, workdir = corpus(folder, rng, count, kind), folder / "run"
    train(options(folder, kind, training__max_steps=STEPS), workdir)
    first, written = cached(workdir), tiny.digests(workdir, STEPS)
    told: list[str] = []
    run = prepare(options(folder, kind), workdir, told.append)
    saved = position_file.read(run_folder.finished(run_folder.checkpoints(workdir))[STEPS])
    assert (run.fingerprint, dict(run.held_out)) == (saved["data"], saved["held_out"])
    train(options(folder, kind, training__max_steps=STEPS + 2), workdir)
    assert len(first) == 4
    assert cached(workdir) == first  # nothing was tokenised again
    assert tiny.digests(workdir, STEPS + 2) != written
    assert all(math.isfinite(line["loss"]) for line in tiny.metrics(workdir))
    assert len(run.rows) > count / 2
    return wrong_lines(run, expected, kind)


def test_odd_lines_are_read_and_kept_in_their_tokens(tmp_path):
    expected = corpus(tmp_path, random.Random(SEED), 300, "words")
    run = prepare(options(tmp_path, "words"), tmp_path / "run", print)
    assert wrong_lines(run, expected, "words") == 0


@pytest.mark.drill
@pytest.mark.parametrize("kind", KINDS)
def test_many_odd_lines_are_trained_on(tmp_path, kind, tally):
    """100,000 lines: a third with each kind of vocabulary."""
    count = 16_667
    lost = trained_twice(tmp_path, random.Random(f"{SEED} {kind}"), kind, count)
    tally(tries=2 * count, losses=lost)


@pytest.mark.drill
def test_bytes_that_are_no_text_are_named_with_their_line_among_many(tmp_path, tally):
    """A sentence for each of 50 places; where vocabularies are too small for the characters, one that names a size."""
    rng = random.Random(SEED)
    corpus(tmp_path, rng, 2000, "bpe")
    whole, lost = (tmp_path / "train.in").read_bytes().split(b"\n"), 0
    for _ in range(50):
        number, bad = rng.randrange(2000), rng.choice(NO_TEXT)
        lines = [*whole[:number], whole[number] + bad, *whole[number + 1 :]]
        (tmp_path / "train.in").write_bytes(b"\n".join(lines))
        try:
            train(options(tmp_path, "bpe"), tmp_path / "run")
            lost += 1
        except UserError as error:
            lost += f"train.in, line {number + 1}: byte 0x" not in str(error)
    (tmp_path / "train.in").write_bytes(b"\n".join(whole))
    with pytest.raises(UserError, match=r"^data\.vocabulary\.src_size is 20: .* use \d+ or more, or lower data"):
        train(options(tmp_path, "bpe", data__vocabulary__src_size=20), tmp_path / "run")
    assert len(read_lines(tmp_path / "train.in")) == 2000
    tally(tries=51, losses=lost)
