"""A signal at any moment before the first update: the run ends within seconds and has saved nothing."""

import random
import signal
import time

import pytest

from convs2s_jax.training.run import run_folder
from tests import processes, tiny

SEED = 16
LINES = 150_000
BOUND = 5.0
"""Seconds from the signal to the end: what docs/training.md promises."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Both sides of 20 MB, in words that take SentencePiece minutes to learn from."""
    folder, rng = tmp_path_factory.mktemp("corpus"), random.Random(SEED)
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = ["".join(rng.choices(letters, k=rng.randint(2, 12))) for _ in range(200_000)]
    for side in ("in", "out"):
        lines = "".join(f"{' '.join(rng.choices(words, k=18))}\n" for _ in range(LINES))
        (folder / f"train.{side}").write_text(lines)
        (folder / f"valid.{side}").write_text(lines[: lines.index("\n") + 1])
    return folder


def reading(workdir, told):
    return "devices" in told


def learning(workdir, told):
    return "learning the vocabularies" in told


def tokenising(workdir, told):
    return any((workdir / "cache").glob(".train.*"))


def compiling(workdir, told):
    return "parameters; vocabularies of" in told


QUICK = {"data__vocabulary": {"kind": "words", "min_count": 2, "src_size": 1000, "tgt_size": 1000}}
PIECES = {"data__vocabulary": {"kind": "bpe", "src_size": 300, "tgt_size": 300, "sample": 1000}}
SLOW = {"data__vocabulary": {"kind": "unigram", "src_size": 16_000, "tgt_size": 16_000}}


@pytest.mark.drill
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize(
    ("stage", "options"),
    [(reading, SLOW), (learning, SLOW), (tokenising, PIECES), (compiling, QUICK)],
    ids=["reading", "learning", "tokenising", "compiling"],
)
def test_a_signal_before_the_first_update_ends_a_run_on_a_large_corpus_in_seconds(
    tmp_path, corpus, stage, options, name, tally
):
    workdir, rng = tmp_path / "run", random.Random(f"{SEED} {stage.__name__} {name}")
    config = tiny.config_file(tmp_path, **tiny.files(corpus), **options)
    process = processes.Process([f"--config={config}", f"--workdir={workdir}"], 1, tmp_path / "log.txt")
    try:
        processes.await_(lambda: stage(workdir, process.told), process)
        time.sleep(rng.uniform(0, 8.0 if stage is learning else 0.2))
        since = time.monotonic()
        process.popen.send_signal(signal.Signals[name])
        status = process.wait(60)
        seconds = time.monotonic() - since
    finally:
        process.popen.kill()
        process.popen.wait()
    said = process.told.count(f"{name}: stopped before the first update; there was nothing to save\n")
    right = (status, said, run_folder.has_checkpoint(workdir), "Traceback" in process.told) == (0, 1, False, False)
    tally(tries=1, losses=int(not right or seconds > BOUND))
