"""Compile time and memory of a training step:  python benchmarks/compile.py [CONFIG ...]

Each configuration is lowered and compiled from shapes alone, so nothing large is allocated: layers one after another,
equal ones scanned, and both with rematerialisation. With --repeats the steps are run too, in turn, and their time is
measured. Memory is what XLA plans: arguments (state and batch) and what it needs besides. Processor seconds vary less
where other work is on the machine.
"""

import argparse
import dataclasses
import statistics
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from machine import decoder_flops, describe, encoder_flops, product_rate

from convs2s_jax.core.command_line import read_config
from convs2s_jax.core.config import build
from convs2s_jax.models.encoder_decoder import ModelConfig
from convs2s_jax.models.stack import ExecutionConfig
from convs2s_jax.training import step as stepping
from convs2s_jax.training.config import Config
from convs2s_jax.training.loss import Batch

CONFIGS = Path(__file__).parents[1] / "configs"
PRESETS = ["iwslt_de_en", "wmt_en_ro", "wmt_en_de", "wmt_en_fr"]
WAYS = {
    "unrolled": ExecutionConfig(scan_layers=0),
    "products": ExecutionConfig(scan_layers=0, convolution="products"),
    "default": ExecutionConfig(),
    "scanned": ExecutionConfig(scan_layers=2),
    "scanned, remat": ExecutionConfig(scan_layers=2, remat=True),
    "unrolled, remat": ExecutionConfig(scan_layers=0, remat=True),
}
KEY = jax.random.key(0)
RATE = jnp.float32(0.1)


def main() -> None:
    """Compile, perhaps run, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="*", default=[str(CONFIGS / f"fairseq_fconv_{name}.py") for name in PRESETS])
    parser.add_argument(
        "--ways", nargs="*", default=[w for w in WAYS if w not in ("products", "default")], choices=WAYS
    )
    parser.add_argument("--layers", type=int, help="as many layers of 256 on each side, in place of the preset's")
    parser.add_argument("--vocabulary", type=int, default=40_000, help="entries of both vocabularies")
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--length", type=int, default=64, help="of sources and targets")
    parser.add_argument("--repeats", type=int, default=0, help="steps to run and time")
    arguments = parser.parse_args()

    print(describe())
    print("| model | layers | compile s | processor s | arguments MiB | besides MiB | step s, best / median | share |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for path in arguments.configs:
        cfg = build(Config, read_config(path, []))
        model, name = cfg.model, Path(path).stem.removeprefix("fairseq_")
        if arguments.layers:
            layers = [(256, 3)] * arguments.layers
            model = build(ModelConfig, {"encoder": {"layers": layers}, "decoder": {"layers": layers}})
            name = f"{arguments.layers} + {arguments.layers} layers of 256"
        measure(name, model, cfg, arguments)


def measure(name: str, model: ModelConfig, cfg: Config, arguments: argparse.Namespace) -> None:
    """One row for each way."""
    size = arguments.vocabulary
    shape = jax.ShapeDtypeStruct((arguments.rows, arguments.length), jnp.int32)
    init = partial(stepping.init, model=model, cfg=cfg.training, source=size, target=size)
    state, batch = jax.eval_shape(init, KEY), Batch(src=shape, tgt=shape)
    rows, programs = {}, {}
    for way in arguments.ways:
        step = stepping.compile_steps(dataclasses.replace(model, execution=WAYS[way]), cfg.training).whole
        before, cpu = time.perf_counter(), time.process_time()
        programs[way] = step.lower(state, batch, RATE, KEY).compile()
        memory = programs[way].memory_analysis()
        rows[way] = [
            f"{time.perf_counter() - before:.1f}",
            f"{time.process_time() - cpu:.1f}",
            *(f"{size / 2**20:.0f}" for size in (memory.argument_size_in_bytes, memory.temp_size_in_bytes)),
        ]
    seconds = run(programs, init, shape, size, arguments.repeats)
    tokens = arguments.rows * arguments.length
    arithmetic = 3 * tokens * (encoder_flops(model) + decoder_flops(model, arguments.length, size))
    peak = product_rate() if arguments.repeats else 1.0
    for way, row in rows.items():
        if times := seconds[way]:
            row += [f"{min(times):.2f} / {statistics.median(times):.2f}", f"{arithmetic / min(times) / peak:.2f}"]
        print("| " + " | ".join([name, way, *row]) + " |", flush=True)
    if arguments.repeats:
        print(f"matrix product {peak / 1e9:.0f} GFLOP/s")


def run(programs: dict, init, shape: jax.ShapeDtypeStruct, size: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of `repeats` steps of each program, in turn, after one that is not counted."""
    seconds: dict[str, list[float]] = {way: [] for way in programs}
    if not repeats:
        return seconds
    tokens = jax.random.randint(KEY, shape.shape, 4, size)
    state, batch = jax.jit(init)(KEY), Batch(src=tokens, tgt=tokens)
    for repeat in range(repeats + 1):
        for way, program in programs.items():
            before = time.perf_counter()
            state, sums = program(state, batch, RATE, KEY)
            jax.block_until_ready(sums)
            seconds[way] += [time.perf_counter() - before] if repeat else []
    return seconds


if __name__ == "__main__":
    main()
