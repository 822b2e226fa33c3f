"""Timed updates. Batches are on the device and all shapes are compiled before timing starts."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from convs2s_jax.core.tokens import PAD
from convs2s_jax.data import plan
from convs2s_jax.training.batch import Batch
from convs2s_jax.training.mesh import MeshConfig, make
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.inputs import batch_on
from convs2s_jax.training.run.prepare import Run
from convs2s_jax.training.run.programs import ProgramKey, compile_run, fresh_state
from convs2s_jax.training.step import update

MULTI30K = {
    "data.src": "de",
    "data.tgt": "en",
    "data.vocabulary.joint": "False",
    "data.vocabulary.src_size": "10000",
    "data.vocabulary.tgt_size": "7000",
    "data.batch.tokens": "4000",
    "model.dropout": "0.2",
}
"""Overrides of a preset for timing on Multi30k, German to English."""


@dataclass(frozen=True)
class Updates:
    """Some batches of an epoch: pairs, real `sources` and `targets` (tokens), the fraction of padding in the epoch.

    `through()` trains on all of them and returns the seconds.
    """

    pairs: int
    sources: int
    targets: int
    padding: float
    through: Callable[[], float]


def compiled(cfg: Config, run: Run, count: int) -> Updates:
    """Return the first `count` batches of the first epoch on the first device, after one update of each shape."""
    src, tgt = run.train.lengths()
    epoch = plan.plan_epoch(src, tgt, run.rows, run.shapes, seed=1, epoch=1)
    chosen = epoch.batches[:count]
    mesh = make(MeshConfig(data=1), jax.devices()[:1])
    batches = [batch_on(mesh, run.train, epoch, planned) for planned in chosen]
    sizes = {"source": run.vocabularies.src.size, "target": run.vocabularies.tgt.size}
    state = fresh_state(jax.random.key(1), cfg.model, cfg.training, **sizes)
    steps = compile_run(ProgramKey(cfg.model, cfg.training))

    def through(batches: list[Batch]) -> float:
        nonlocal state
        before = time.perf_counter()
        for i, batch in enumerate(batches):
            state, sums = update(steps, state, [batch], jnp.float32(1e-4), jax.random.key(i))
        jax.block_until_ready(sums)
        return time.perf_counter() - before

    shapes = {batch.src.shape + batch.tgt.shape: batch for batch in batches}
    seconds = through(list(shapes.values()))
    print(f"{len(shapes)} shapes compiled in {seconds:.1f} s", flush=True)
    return Updates(
        pairs=sum(len(one.rows) for one in chosen),
        sources=sum(int((batch.src != PAD).sum()) for batch in batches),
        targets=sum(int((batch.tgt != PAD).sum()) for batch in batches),
        padding=plan.padding(src, tgt, run.rows, epoch),
        through=lambda: through(batches),
    )
