"""Compile time and memory of the gradients of a batch:  python benchmarks/compile.py [CONFIG ...]

Each configuration is lowered and compiled from shapes alone, so nothing large is allocated. Layers are unrolled, or
scanned if they are equal, each with and without rematerialisation. A training run compiles the gradients once per batch
shape. The last rows of a model are the optimiser's update and the initial state, which it compiles once. With
`--ways default` the rows are the programs that the first update waits for. `--optimizers nesterov adam` adds such last
rows for each of these optimisers. With --repeats, whole updates are also run in turn and timed. Memory is XLA's plan:
arguments (parameters and batch) and temporary buffers. CPU time varies less than wall-clock time on a shared machine.

With --topology, the gradients and the optimiser's update are compiled for a TPU slice that need not be attached (pip
install libtpu, in the version that jax[tpu] requires; TPU_WORKER_HOSTNAMES=localhost keeps it quiet), on any mesh:
--topology=v5e:4x4 --mesh 4 2 2. Then rows and memory are those of one chip, and collectives are counted as they appear
in the program (once in a loop).
"""

import argparse
import dataclasses
import re
import statistics
import time
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from machine import decoder_flops, describe, encoder_flops, positive, product_rate, run_script

from convs2s_jax.commands.shared import read_config
from convs2s_jax.core.config import build
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.execution import ExecutionConfig
from convs2s_jax.scaling import topology
from convs2s_jax.training import mesh as meshes
from convs2s_jax.training import sharding
from convs2s_jax.training.batch import Batch
from convs2s_jax.training.mesh import MeshConfig
from convs2s_jax.training.optimizer import AdamConfig, AdamWConfig, NesterovConfig
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.programs.abstract_arrays import placed
from convs2s_jax.training.run.programs.configured import compile_configured, fresh_state
from convs2s_jax.training.run.programs.first_state import FirstState

CONFIGS = Path(__file__).parents[1] / "configs"
PRESETS = ["iwslt_de_en", "wmt_en_ro", "wmt_en_de", "wmt_en_fr"]
WAYS = {
    "unrolled": ExecutionConfig(scan_layers=0),
    "products": ExecutionConfig(scan_layers=0, convolution="products"),
    "default": ExecutionConfig(),
    "scanned": ExecutionConfig(scan_layers=2),
    "scanned, remat": ExecutionConfig(scan_layers=2, remat="block"),
    "unrolled, remat": ExecutionConfig(scan_layers=0, remat="block"),
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
    parser.add_argument("--topology", help="TPU topology, such as v5e:4x4")
    parser.add_argument("--slices", type=positive, help="number of slices")
    parser.add_argument("--mesh", type=int, nargs=3, metavar=("DATA", "FSDP", "TENSOR"), help="mesh of the chips")
    arguments = parser.parse_args()
    for flag in ("mesh", "slices"):
        if getattr(arguments, flag) and not arguments.topology:
            parser.error(f"--{flag} without --topology: it arranges the chips of a TPU; set a topology such as v5e:4x4")
    if arguments.optimizers and (arguments.topology or arguments.repeats):
        parser.error("--optimizers with --topology or --repeats: these use only the configuration's optimiser")

    print(describe())
    last = "collectives" if arguments.topology else "step s, best / median | share"
    print(f"| model | layers | compile s | processor s | arguments MiB | temporaries MiB | {last} |")
    print("|---|---|---|---|---|---|---|" + ("" if arguments.topology else "---|"), flush=True)
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
    size, mesh = arguments.vocabulary, pod(arguments)
    rows = arguments.rows * (mesh.devices.size if mesh else 1)
    shape = jax.ShapeDtypeStruct((rows, arguments.length), jnp.int32)
    init = partial(fresh_state, model=model, training=cfg.training, source=size, target=size)
    state, batch, rate, key = jax.eval_shape(init, KEY), Batch(src=shape, tgt=shape), RATE, KEY
    if mesh:
        rest = sharding.replicated(mesh)
        state, rate, key = placed(state, sharding.shardings(state, mesh)), placed(rate, rest), placed(key, rest)
        batch = placed(batch, sharding.batch_sharding(mesh))
    rows, programs = {}, {}
    for way in arguments.ways:
        steps = compile_configured(dataclasses.replace(model, execution=WAYS[way]), cfg.training, mesh)
        programs[way], rows[way] = compiled(steps.first, state.params, batch, key)
    total = jax.eval_shape(steps.first, state.params, batch, key)
    if mesh:
        total = placed(total[0], sharding.shardings(total[0], mesh)), placed(total[1], rest)
    finish, rows["the optimiser's part"] = compiled(steps.finish, state, total, rate)
    if mesh is None:
        first = FirstState(model, cfg.training, source=size, target=size)
        _, rows["the keys of a new state"] = compiled(first.keys, KEY)
        _, rows["a new state"] = compiled(first.state, KEY, jax.eval_shape(first.keys, KEY))
    for kind in arguments.optimizers or ():
        named = dataclasses.replace(cfg.training, optimizer=OPTIMIZERS[kind])
        init = partial(fresh_state, model=model, training=named, source=size, target=size)
        steps = compile_configured(model, named)
        _, rows[f"the optimiser's part, {kind}"] = compiled(steps.finish, jax.eval_shape(init, KEY), total, rate)
        first = FirstState(model, named, source=size, target=size)
        _, rows[f"a new state, {kind}"] = compiled(first.state, KEY, jax.eval_shape(first.keys, KEY))
    seconds = run(programs, finish, init, shape, size, arguments.repeats)
    tokens = arguments.rows * arguments.length
    arithmetic = 3 * tokens * (encoder_flops(model) + decoder_flops(model, arguments.length, size))
    peak = product_rate() if arguments.repeats else 1.0
    for way, row in rows.items():
        if mesh is None:
            if times := seconds.get(way):
                row += [f"{min(times):.2f} / {statistics.median(times):.2f}", f"{arithmetic / min(times) / peak:.2f}"]
            else:
                row += ["", ""]
        else:
            row.append(exchanges((programs.get(way) or finish).as_text()))
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


def pod(arguments: argparse.Namespace) -> Mesh | None:
    """Return the mesh of --topology, whose devices need not be attached; None without the flag."""
    if arguments.topology is None:
        return None
    found = topology.named(arguments.topology, slices=arguments.slices or 1)
    sizes = dict(zip(meshes.AXES, arguments.mesh or [-1, 1, 1], strict=True))
    return meshes.make(MeshConfig(**sizes), found.devices)


def exchanges(program: str) -> str:
    """Return the number of collectives of each kind in the program."""
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "collective-permute", "all-to-all")
    found = re.findall(rf" ({'|'.join(kinds)})(?:-start)?\(", program)
    return ", ".join(f"{found.count(kind)} {kind}" for kind in kinds if kind in found) or "none"


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
