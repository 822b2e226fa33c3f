"""Tokenising, ours against others:  python benchmarks/preparation.py [--pairs N] [--peer PYTHON] [--fairseq DIR]

Seeded text of words with Zipf's frequencies, or the beginning of --src and --tgt, is tokenised with the same two
SentencePiece models of 16,000 pieces by `convs2s prepare` with one and with two processes; with --peer, a Python that
has `datasets` and `sentencepiece`, also by `datasets.map(num_proc=2)`, whose result is stored as Arrow files; and with
--fairseq, a checkout that this Python can import, by SentencePiece's pieces and `fairseq-preprocess --workers 2`.
Prints wall and processor seconds of whole commands, start-up included, and pairs per wall second.
"""

import argparse
import itertools
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from machine import describe, positive, run_script

from convs2s_jax.core.config import check
from convs2s_jax.data import pieces
from convs2s_jax.data.config import VocabularyConfig
from convs2s_jax.data.text_files import each_line

SIZE, SAMPLE, SEED = 16_000, 200_000, 1
CONFIG = """
def get_config():
    shape = {{"layers": [(16, 3)]}}
    return {{
        "data": {{"src": "src", "tgt": "tgt", "dir": "{0}", "hold_out": 0.0, "vocabulary": {{"dir": "{0}"}}}},
        "model": {{"embedding_dim": 16, "encoder": shape, "decoder": {{**shape, "out_dim": 16}}}},
        "training": {{"schedule": {{"kind": "fixed"}}}},
    }}
"""
DATASETS = """
import sentencepiece
from datasets import load_dataset

if __name__ == "__main__":
    for side in ("src", "tgt"):
        model = sentencepiece.SentencePieceProcessor(model_file=side + ".model")
        text = load_dataset("text", data_files="train." + side, split="train", cache_dir="hf")
        text.map(lambda rows: {"ids": model.encode(rows["text"], num_threads=1)}, batched=True, num_proc=2,
                 remove_columns="text").save_to_disk("hf/" + side)
"""
FAIRSEQ = """
import sentencepiece
from fairseq_cli.preprocess import cli_main

for side in ("src", "tgt"):
    model = sentencepiece.SentencePieceProcessor(model_file=side + ".model")
    with open("train." + side) as text, open("pieces." + side, "w") as file:
        while lines := text.readlines(1 << 20):
            file.writelines(" ".join(line) + "\\n" for line in model.encode(lines, out_type=str))
cli_main()
"""


def main() -> None:
    """Print the seconds of each way, in the order in which they ran."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=positive, default=1_000_000)
    parser.add_argument("--src", help="file of source lines instead of generated ones")
    parser.add_argument("--tgt", help="file of target lines")
    parser.add_argument("--peer", help="Python with datasets and sentencepiece")
    parser.add_argument("--fairseq", help="checkout of fairseq that this Python can import")
    given = parser.parse_args()
    print(describe(), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for side, file in (("src", given.src), ("tgt", given.tgt)):
            lines = itertools.islice(each_line(file), given.pairs) if file else generated(given.pairs, side)
            (folder / f"train.{side}").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            sample = itertools.islice(each_line(folder / f"train.{side}"), SAMPLE)
            pieces.train(VocabularyConfig(), sample, size=SIZE, field="SIZE").save(folder / f"{side}.model")
        (folder / "config.py").write_text(CONFIG.format(folder))
        ours = [sys.executable, "-m", "convs2s_jax", "prepare", "--config=config.py"]
        for workers in (1, 2):
            timed(
                f"convs2s prepare, {workers} process{'es'[: 2 * workers - 2]}",
                [*ours, f"--workdir=run{workers}", f"--config.data.workers={workers}"],
                folder,
                given.pairs,
            )
        if given.peer:
            (folder / "by_datasets.py").write_text(DATASETS)
            timed("datasets.map(num_proc=2)", [given.peer, "by_datasets.py"], folder, given.pairs)
        if given.peer and given.fairseq:
            (folder / "by_fairseq.py").write_text(FAIRSEQ)
            dictionaries = "--source-lang=src --target-lang=tgt --trainpref=pieces --destdir=bin --workers=2"
            command = [given.peer, "by_fairseq.py", *dictionaries.split()]
            timed("fairseq-preprocess --workers 2", command, folder, given.pairs, PYTHONPATH=given.fairseq)


def generated(pairs: int, side: str) -> list[str]:
    """Return lines of words with Zipf's frequencies: about 22 words and 150 bytes each."""
    rng = np.random.default_rng([SEED, len(side), ord(side[0])])
    letters = np.array([*"abcdefghijklmnopqrstuvwxyzäöüß"])
    words = np.array(["".join(rng.choice(letters, n)) for n in rng.poisson(5, 60_000) + 1], object)
    chances = np.cumsum(1 / np.arange(1, len(words) + 1))
    lengths = rng.poisson(22, pairs) + 1
    drawn = np.searchsorted(chances, rng.random(lengths.sum()) * chances[-1])
    ends = np.cumsum(lengths)
    return [" ".join(words[drawn[end - n : end]]) for n, end in zip(lengths.tolist(), ends.tolist(), strict=True)]


def timed(name: str, command: list[str], folder: Path, pairs: int, **more: str) -> None:
    """Run a command in a folder and print what it took."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    paths = {} if more else {"PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(command, cwd=folder, env={**os.environ, **paths, **more}, capture_output=True, text=True)
    check(done.returncode == 0, f"{name} failed:\n{done.stderr}")
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{name}: {wall:.1f} s, {used:.1f} processor seconds, {pairs / wall:,.0f} pairs/s", flush=True)


if __name__ == "__main__":
    run_script(main)
