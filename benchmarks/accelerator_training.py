"""Parts of `benchmarks/accelerator.py`: whole updates, and depthwise convolutions."""

import argparse
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import depthwise as single
import jax
import jax.numpy as jnp
import numpy as np
from accelerator_tools import FIRST, Found, digits, memory, preset, spread, timed
from machine import decoder_flops, encoder_flops

from convs2s_jax.core.tokens import EOS
from convs2s_jax.training.batch import Batch
from convs2s_jax.training.run.programs import ProgramKey, compile_run, fresh_state
from convs2s_jax.training.step import TrainState, update

CALLS = 3
"""Updates that are dispatched without waiting, to time the host. They are few, so that no device queue is full."""


def random_ids(key: jax.Array, shape: tuple[int, ...], vocabulary: int) -> jax.Array:
    """Sentences of random words, with their end symbols."""
    return jax.random.randint(key, shape, FIRST, vocabulary).at[..., -1].set(EOS)


def training(sizes: Found, arguments: argparse.Namespace, peaks: Found, end: float) -> Iterator[Found]:
    """Measure whole updates, and their share of the product rate."""
    cfg, vocabulary = preset(sizes["train"], arguments.dtype), sizes["vocabulary"]
    steps = compile_run(ProgramKey(cfg.model, cfg.training))
    init = partial(fresh_state, model=cfg.model, training=cfg.training, source=vocabulary, target=vocabulary)
    state = jax.jit(init)(jax.random.key(1))
    for rows, length in sizes["batches"]:
        ids = random_ids(jax.random.key(2), (2, rows, length), vocabulary)
        batch = Batch(src=ids[0], tgt=ids[1])
        flops = 3 * rows * length * (encoder_flops(cfg.model) + decoder_flops(cfg.model, length, vocabulary))
        taken: list[float] = []
        while len(taken) <= sizes["repeats"] and (len(taken) < 3 or time.monotonic() < end):
            before, count = time.perf_counter(), 8 if taken else 1
            for number in range(count):
                state, sums = update(steps, state, [batch], jnp.float32(1e-4), jax.random.key(number))
            jax.block_until_ready((state, sums))
            taken.append((time.perf_counter() - before) / count)
        first, taken = taken[0], taken[1:]
        yield {
            "what": f"{sizes['train']}, {rows} x ({length}, {length})",
            "first s": digits(first),
            "ms": spread([1e3 * t for t in taken]),
            "tokens/s": spread([rows * length / t for t in taken]),
            "share of the product": spread([flops / t / peaks["product"] for t in taken]),
            "GB": memory(),
        }


def shapes(sizes: Found, arguments: argparse.Namespace, peaks: Found, end: float) -> Iterator[Found]:
    """Measure updates of each shape alone and of all in turn, where arrays can have other addresses at each call."""
    del peaks
    cfg, vocabulary = preset(sizes["in_turn"], arguments.dtype), sizes["words"]
    steps = compile_run(ProgramKey(cfg.model, cfg.training))
    init = partial(fresh_state, model=cfg.model, training=cfg.training, source=vocabulary, target=vocabulary)
    state = jax.jit(init)(jax.random.key(1))

    def random_batch(shape: tuple[int, int, int]) -> Batch:
        keys, (rows, src, tgt) = jax.random.split(jax.random.key(2)), shape
        sides = [random_ids(k, (rows, n), vocabulary) for k, n in zip(keys, (src, tgt), strict=True)]
        return Batch(src=sides[0], tgt=sides[1])

    def timed_updates(state: TrainState, batches: list[Batch]) -> tuple[TrainState, float]:
        before = time.perf_counter()
        for number, batch in enumerate(batches):
            state, sums = update(steps, state, [batch], np.float32(1e-4), jax.random.key(number))
        jax.block_until_ready((state, sums))
        return state, 1e3 * (time.perf_counter() - before) / len(batches)

    batches = [random_batch(shape) for shape in sizes["shapes"]]
    before = time.perf_counter()
    with ThreadPoolExecutor(len(batches)) as pool:  # to compile at once
        list(pool.map(lambda batch: steps.first(state.params, batch, jax.random.key(0)), batches))
    state, _ = timed_updates(state, batches)
    first = time.perf_counter() - before
    alone, in_turn = [], []
    while len(in_turn) < sizes["repeats"] and (not in_turn or time.monotonic() < end):
        each = []
        for batch in batches:
            state, _ = timed_updates(state, [batch])
            state, taken = timed_updates(state, [batch] * 4 * len(batches))
            each.append(taken)
        alone.append(statistics.mean(each))
        state, taken = timed_updates(state, batches * 4 * len(batches))
        in_turn.append(taken)
    before = time.perf_counter()
    for number in range(CALLS):
        state, sums = update(steps, state, [batches[0]], np.float32(1e-4), jax.random.key(number))
    host = 1e3 * (time.perf_counter() - before) / CALLS
    jax.block_until_ready((state, sums))
    yield {
        "what": f"{sizes['in_turn']}, {len(batches)} shapes, an update",
        "first s": digits(first),
        "host ms": digits(host),
        "each shape alone ms": spread(alone),
        "in turn ms": spread(in_turn),
    }


def convolutions(sizes: Found, arguments: argparse.Namespace, peaks: Found, end: float) -> Iterator[Found]:
    """Measure each form of depthwise convolution and XLA's grouped convolution, forward and both gradients."""
    del peaks
    B, T, C, H = sizes["rows"], sizes["length"], sizes["channels"], 4
    keys = jax.random.split(jax.random.key(0), 3)
    dy = jax.random.normal(keys[0], (B, T, C)).astype(arguments.dtype)
    for width in sizes["widths"]:
        x = jax.random.normal(keys[1], (B, T + width - 1, C)).astype(arguments.dtype)
        kernels = {"depthwise": (width, C), "lightweight": (width, H), "dynamic": (B, T, width, H)}
        for operation, shape in kernels.items():
            w = jax.random.normal(keys[2], shape).astype(arguments.dtype)
            taken = {}
            for name, form in single.OPERATIONS[operation].items():
                both = jax.jit(lambda w, x, form=form: (lambda y, pull: (y, pull(dy)))(*jax.vjp(form, w, x)))
                taken[f"{name} ms"] = digits(1e3 * min(timed(both, w, x, repeats=sizes["repeats"], end=end)))
            yield {"what": f"{operation}, width {width}, {B} x {T} x {C}", **taken}
