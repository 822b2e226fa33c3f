"""Estimate the savings of continuous batching:  python benchmarks/refill.py --workdir=RUN --data=DIR [--beams 1 5]

Prints the ratio of computed decoding steps to the steps that sentences need, on the test split of DIR, for batches that
shrink when sentences finish, as in `translate`, and for rows that are refilled with new sentences. Only steps are
counted, from translations of a trained model with fairseq's stopping rule; no time is measured. A file is sorted by
length, a stream is not. Results are in docs/performance-log.md at commit f02697ce.
"""

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from machine import positive, run_script

from convs2s_jax.data import parallel_text
from convs2s_jax.search.translate import translate
from convs2s_jax.translation.translator import load, precomputed

SIZES = ((64,), (64, 32), (64, 32, 16, 8))
"""Possible numbers of rows of a batch, the largest first."""
REFILL_INTERVALS = (1, 4)
"""Number of steps after which rows of finished sentences are refilled."""


def main() -> None:
    """Translate, count, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", required=True, type=Path, help="a trained model")
    parser.add_argument("--data", required=True, help="folder with the test split")
    parser.add_argument("--beams", type=positive, nargs="+", default=[1, 5])
    parser.add_argument("--sentences", type=positive, default=1000)
    arguments = parser.parse_args()
    model = precomputed(load(arguments.workdir, tell=print))
    text = parallel_text.read(dataclasses.replace(model.cfg.data, dir=arguments.data), "test").src
    sources = [np.asarray(ids) for ids in model.vocabularies.src.encode(text)][: arguments.sentences]
    sorted_places = np.argsort([-len(source) for source in sources], kind="stable")
    columns, names = [], []
    for beam in arguments.beams:
        search = dataclasses.replace(model.cfg.search, beam_size=beam, stop="fairseq")
        found = translate(model.params, model.models, search, sources)
        steps = np.asarray([max(len(one.tokens) + 1 for one in each.candidates) for each in found])
        columns += [overheads(steps[sorted_places]), overheads(steps)]
        names += [f"beam {beam}, file", f"beam {beam}, stream"]
    print(f"\n| rows of a batch | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    labels = [", ".join(map(str, sizes)) for sizes in SIZES]
    labels += [f"{SIZES[0][0]}, new sentences every {every} step(s)" for every in REFILL_INTERVALS]
    for label, values in zip(labels, zip(*columns, strict=True), strict=True):
        print(f"| {label} | {' | '.join(f'{value:.2f}' for value in values)} |")


def overheads(steps: np.ndarray) -> list[float]:
    """Return the ratio of computed to required row steps, one number for each row of the table."""
    computed = [shrinking(steps, sizes) for sizes in SIZES] + [
        refilled(steps, SIZES[0][0], every) for every in REFILL_INTERVALS
    ]
    return [count / steps.sum() for count in computed]


def shrinking(steps: np.ndarray, sizes: Sequence[int]) -> int:
    """Count row steps (one step of one row) if each batch has the smallest size that fits its unfinished sentences.

    Args:
      steps: [N], steps of each sentence, in the order of the batches.
      sizes: possible batch sizes; a new batch has the first one.
    """
    total = 0
    for begin in range(0, len(steps), sizes[0]):
        batch = steps[begin : begin + sizes[0]]
        for step in range(batch.max()):
            left = int((batch > step).sum())
            total += min(size for size in sizes if size >= left)
    return total


def refilled(steps: np.ndarray, rows: int, every: int) -> int:
    """Count row steps if rows of finished sentences are refilled with the next ones at regular intervals.

    Args:
      steps: [N], steps of each sentence, in the order in which they are processed.
      rows: number of rows of the batch, which does not shrink at the end.
      every: number of steps between two refills.
    """
    waiting = list(steps[::-1])
    left = np.zeros(rows, np.int64)
    total = 0
    while True:
        for row in np.flatnonzero(left <= 0):
            left[row] = waiting.pop() if waiting else 0
        if not (left > 0).any():
            return total
        steps_run = every if waiting else min(every, int(left.max()))
        total += steps_run * rows
        left -= steps_run


if __name__ == "__main__":
    run_script(main)
