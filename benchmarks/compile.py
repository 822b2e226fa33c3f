"""Compile time and memory of the gradients of a batch:  python benchmarks/compile.py [CONFIG ...]

Each configuration is lowered and compiled from shapes alone, so nothing large is allocated, with and without
rematerialisation. A training run compiles the gradients once per batch shape. The last rows of a model are the
optimiser's update and the initial state, which it compiles once. With `--ways default` the rows are the programs that
the first update waits for. `--optimizers nesterov adam` adds such last rows for each of these optimisers. With
--repeats, whole updates are also run in turn and timed. Memory is XLA's plan: arguments (parameters and batch) and
temporary buffers. CPU time varies less than wall-clock time on a shared machine. For devices that need not be attached,
use `convs2s scale plan`.
"""

import argparse
import dataclasses
import statistics
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from machine import decoder_flops, describe, encoder_flops, positive, product_rate, run_script

from convs2s_jax.commands.shared import read_config
from convs2s_jax.core.config import build
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.execution import ExecutionConfig
from convs2s_jax.training import dispatch
from convs2s_jax.training.batch import Batch
from convs2s_jax.training.optimizer import AdamConfig, AdamWConfig, NesterovConfig
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.programs import ProgramKey, compile_run, fresh_state

CONFIGS = Path(__file__).parents[1] / "configs"
PRESETS = ["iwslt_de_en", "wmt_en_ro", "wmt_en_de", "wmt_en_fr"]
WAYS = {
    "products": ExecutionConfig(convolution="products"),
    "default": ExecutionConfig(),
    "remat": ExecutionConfig(remat="block"),
}
OPTIMIZERS = {"nesterov": NesterovConfig(), "adam": AdamConfig(), "adamw": AdamWConfig()}
KEY = jax.random.key(0)
RATE = jnp.float32(0.1)


def main() -> None:
    """Compile, run with --repeats, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="*", default=[str(CONFIGS / f"fairseq_fconv_{name}.py") for name in PRESETS])
    parser.add_argument(
        "--ways", nargs="*", default=[w for w in WAYS if w not in ("products", "default")], choices=WAYS
    )
    parser.add_argument("--layers", type=positive, help="number of layers of 256 on each side, instead of the preset's")
    parser.add_argument("--vocabulary", type=positive, default=40_000, help="size of both vocabularies")
    parser.add_argument("--rows", type=positive, default=64)
    parser.add_argument("--length", type=positive, default=64, help="length of sources and targets")
    parser.add_argument("--optimizers", nargs="+", choices=OPTIMIZERS, help="add rows for these optimisers")
    parser.add_argument("--repeats", type=int, default=0, help="steps to run and time")
    arguments = parser.parse_args()
    if arguments.optimizers and arguments.repeats:
        parser.error("--optimizers with --repeats: updates are timed only with the configuration's optimiser")

    print(describe())
    print(
        "| model | layers | compile s | processor s | arguments MiB | temporaries MiB | step s, best / median | share |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for path in arguments.configs:
        cfg = read_config(path, [])
        model, name = cfg.model, Path(path).stem.removeprefix("fairseq_")
        if arguments.layers:
            layers = [(256, 3)] * arguments.layers
            model = build(ModelConfig, {"encoder": {"layers": layers}, "decoder": {"layers": layers}})
            name = f"{arguments.layers} + {arguments.layers} layers of 256"
        measure(name, model, cfg, arguments)


def measure(name: str, model: ModelConfig, cfg: Config, arguments: argparse.Namespace) -> None:
    """Print one row for each way to execute the layers."""
    size = arguments.vocabulary
    shape = jax.ShapeDtypeStruct((arguments.rows, arguments.length), jnp.int32)
    init = partial(fresh_state, model=model, training=cfg.training, source=size, target=size)
    state, batch = jax.eval_shape(init, KEY), Batch(src=shape, tgt=shape)
    rows, programs = {}, {}
    for way in arguments.ways:
        steps = compile_run(ProgramKey(dataclasses.replace(model, execution=WAYS[way]), cfg.training))
        programs[way], rows[way] = compiled(steps.first, state.params, batch, KEY)
    total = jax.eval_shape(steps.first, state.params, batch, KEY)
    finish, rows["the optimiser's part"] = compiled(steps.finish, state, total, RATE)
    _, rows["a new state"] = compiled(dispatch.jit_once(init, None), KEY)
    for kind in arguments.optimizers or ():
        named = dataclasses.replace(cfg.training, optimizer=OPTIMIZERS[kind])
        init = partial(fresh_state, model=model, training=named, source=size, target=size)
        steps = compile_run(ProgramKey(model, named))
        _, rows[f"the optimiser's part, {kind}"] = compiled(steps.finish, jax.eval_shape(init, KEY), total, RATE)
        _, rows[f"a new state, {kind}"] = compiled(dispatch.jit_once(init, None), KEY)
    seconds = run(programs, finish, init, shape, size, arguments.repeats)
    tokens = arguments.rows * arguments.length
    arithmetic = 3 * tokens * (encoder_flops(model) + decoder_flops(model, arguments.length, size))
    peak = product_rate() if arguments.repeats else 1.0
    for way, row in rows.items():
        if times := seconds.get(way):
            row += [f"{min(times):.2f} / {statistics.median(times):.2f}", f"{arithmetic / min(times) / peak:.2f}"]
        else:
            row += ["", ""]
        print("| " + " | ".join([name, way, *row]) + " |", flush=True)
    if arguments.repeats:
        print(f"matrix product {peak / 1e9:.0f} GFLOP/s")


def compiled(function, *given) -> tuple:
    """Compile for arguments of these shapes; return the program and its table cells (wall and CPU seconds, memory)."""
    before, cpu = time.perf_counter(), time.process_time()
    program = function.lower(*given).compile()
    took = f"{time.perf_counter() - before:.1f}", f"{time.process_time() - cpu:.1f}"
    memory = program.memory_analysis()
    sizes = memory.argument_size_in_bytes, memory.temp_size_in_bytes
    return program, [*took, *(f"{size / 2**20:.0f}" for size in sizes)]


def run(programs: dict, finish, init, shape: jax.ShapeDtypeStruct, size: int, repeats: int) -> dict[str, list[float]]:
    """Return the seconds of `repeats` steps of each program, run in turn after one warm-up step."""
    seconds: dict[str, list[float]] = {way: [] for way in programs}
    if not repeats:
        return seconds
    tokens = jax.random.randint(KEY, shape.shape, 4, size)
    state, batch = jax.jit(init)(KEY), Batch(src=tokens, tgt=tokens)
    for repeat in range(repeats + 1):
        for way, program in programs.items():
            before = time.perf_counter()
            state, sums = finish(state, program(state.params, batch, KEY), RATE)
            jax.block_until_ready(sums)
            seconds[way] += [time.perf_counter() - before] if repeat else []
    return seconds


if __name__ == "__main__":
    run_script(main)
