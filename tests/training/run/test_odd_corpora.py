"""Odd text as a corpus: each line is trained on as it is, a second start finds the same corpus, and nothing dies."""

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from convs2s_jax.data import vocabulary
from convs2s_jax.training.run import prepare as preparing
from convs2s_jax.training.run.loop import train
from tests import tiny
from tests.translation.test_odd_lines import odd_lines

SEED = 20261123
KINDS = {"words": {"min_count": 2}, "bpe": {"sample": 4000}}


def config(folder: Path, kind: str, steps: int):
    return tiny.config(
        data__corpus="files",
        data__src="src",
        data__tgt="tgt",
        data__dir=str(folder),
        data__vocabulary={"kind": kind, "src_size": 8000, "tgt_size": 8000, **KINDS[kind]},
        training__max_steps=steps,
        training__report_every=1,
    )


def losses(folder: Path, kind: str, sides: Sequence[list[str]]) -> int:
    """How many pairs of lines are not those of the file, or have other token ids by the stored vocabularies."""
    for side, lines in zip(("src", "tgt"), sides, strict=True):
        lines[0] = "a plain line"  # a byte order mark is no text
        for split, part in (("train", lines), ("valid", lines[:8])):
            (folder / f"{split}.{side}").write_bytes("".join(f"{line}\n" for line in part).encode())
    workdir = folder / "run"
    train(config(folder, kind, 1), workdir)
    train(config(folder, kind, 2), workdir)  # refused if the corpus were another now
    assert [record["step"] for record in tiny.metrics(workdir) if record["split"] == "train"] == [1, 2]
    run = preparing.prepare(config(folder, kind, 2), workdir, lambda _: None)
    kept = vocabulary.load(workdir / "vocab")
    lost = np.zeros(len(sides[0]), bool)
    for lines, text, store, learned in (
        (sides[0], run.train.text.src, run.train.src, kept.src),
        (sides[1], run.train.text.tgt, run.train.tgt, kept.tgt),
    ):
        right = [line.removesuffix("\r") for line in lines]  # \r\n ends a line as well
        ids = learned.encode(right)
        for i in range(len(lost)):
            lost[i] |= text[i] != right[i] or list(store[i]) != list(ids[i])
        lost |= len(text) != len(right)
    return int(lost.sum())


@pytest.mark.drill
@pytest.mark.parametrize("kind", KINDS)
def test_many_odd_lines_of_a_corpus_are_trained_on_as_they_are(tmp_path, kind, tally):
    """50,000 pairs of lines with words, and 50,000 with byte-pair encoding."""
    rng = random.Random(f"{SEED} {kind}")
    lost = losses(tmp_path, kind, [odd_lines(rng, 50_000), odd_lines(rng, 50_000)])
    tally(tries=50_000, losses=lost)
