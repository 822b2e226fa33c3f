"""Batches on the host, without a model:  python benchmarks/batches.py [--pairs 36000000]

Times on one core, for random rows of a million sentences in a memory-mapped file: filling one side of a batch, by a
loop over rows and by `fill`, and batches of pairs on a device. Then the time and memory of planning an epoch. Seeded.
"""

import argparse
import os
import tempfile
import time
import tracemalloc
from collections.abc import Callable

import numpy as np
from machine import describe, positive, run_script, spread

from convs2s_jax.core.rows import pad_rows
from convs2s_jax.data.loader import fill
from convs2s_jax.data.plan import Plan, PlannedBatch, plan_epoch, usable
from convs2s_jax.data.shapes import Shape, choose_shapes
from convs2s_jax.data.tokens_on_disk import TokenizedText
from convs2s_jax.training.mesh import MeshConfig, make
from convs2s_jax.training.run.inputs import Split, batch_on

SENTENCES, REPEATS, SEED = 1_000_000, 7, 1


def main() -> None:
    """Print rows (pairs, for whole batches) per second, minimum / median / maximum, then the plan's cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=positive, default=4_500_000, help="pairs to plan")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    print(describe())
    rng = np.random.default_rng(SEED)
    for rows, length, mean in ((128, 30, 24), (64, 60, 50), (1024, 30, 24)):
        offsets = np.concatenate([[0], np.cumsum(rng.poisson(mean, SENTENCES))])
        text = TokenizedText(rng.integers(4, 16_000, offsets[-1]).astype("<u2"), offsets)
        filled(text, (rows, length), rng.integers(SENTENCES, size=(REPEATS, 200, rows)))
    src = np.clip(rng.lognormal(3.2, 0.6, arguments.pairs), 2, 175).astype(np.int32)
    tgt = np.clip(src * rng.normal(1.1, 0.15, arguments.pairs), 2, 175).astype(np.int32)
    used, *_ = usable(src, tgt, max_source=175, max_target=175)
    shapes = choose_shapes(src, tgt, tokens=4000, count=12)
    tracemalloc.start()
    before = time.process_time()
    plan_epoch(src, tgt, used, shapes, seed=SEED, epoch=1)
    seconds, peak = time.process_time() - before, tracemalloc.get_traced_memory()[1]
    print(f"plan of {arguments.pairs} pairs: {seconds:.2f} processor seconds, at most {peak / 1e6:.0f} MB more memory")


def filled(text: TokenizedText, shape: tuple[int, int], chosen: np.ndarray) -> None:
    """Print the speed of each way to make these batches of `shape`. chosen: [repeats, batches, rows]."""
    with tempfile.TemporaryDirectory() as folder:
        arrays = []
        for i, array in enumerate((text.tokens, text.offsets)):
            np.save(f"{folder}/{i}.npy", array)
            arrays.append(np.asarray(np.load(f"{folder}/{i}.npy", mmap_mode="r")))
            arrays[i].sum()  # its pages are in memory
        mapped = TokenizedText(*arrays)
        split, mesh = Split(None, mapped, mapped), make(MeshConfig(data=1))  # type: ignore[arg-type]
        plan = Plan((Shape(shape[1], shape[1], shape[0]),), (), 0.0)
        ways: dict[str, Callable[[np.ndarray], object]] = {
            "a side, by a loop": lambda rows: pad_rows((mapped[row][: shape[1] - 1] for row in rows), shape),
            "a side": lambda rows: fill(mapped, rows, shape),
            "pairs on a device": lambda rows: batch_on(mesh, split, plan, PlannedBatch(0, rows)),
        }
        rates: dict[str, list[float]] = {name: [] for name in ways}
        for repeat in chosen:
            for name, way in ways.items():
                before = time.process_time()
                for rows in repeat:
                    way(rows)
                rates[name].append(repeat.size / (time.process_time() - before) / 1e6)
    for name, found in rates.items():
        print(f"{shape[0]} x {shape[1]}, {name}: {spread(found, 2)} million/s", flush=True)


if __name__ == "__main__":
    run_script(main)
