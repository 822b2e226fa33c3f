"""Compare integer (int8) and floating-point products on this device:  python benchmarks/int8.py

Decoding with 8-bit integer kernels pays off if the first column of the table is well above the second. A row of the
table is one product [rows, inputs] x [inputs, outputs] of decoding: the softmax layer and a convolution of
`fconv_iwslt_de_en`, for greedy search and for beam 5 with batches of 64. The last row is the peak. Results are in
docs/performance.md.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
from jax import Array
from machine import describe, positive, run_script

SHAPES = ((64, 256, 7000), (64, 768, 512), (320, 256, 7000), (320, 768, 512), (2048, 2048, 2048))
LEAST_FLOPS = 2e9
"""Minimum FLOPs of a turn. Short products are repeated."""


def integers(x: Array, w: Array) -> Array:
    """Multiply 8-bit integers with 32-bit accumulation."""
    return jax.lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)


def floats(x: Array, w: Array) -> Array:
    """Multiply floats with float32 accumulation."""
    return jax.lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)


def main() -> None:
    """Measure all forms of each shape in turn and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=positive, default=7)
    arguments = parser.parse_args()
    print(
        f"{describe()}\n\n| rows, inputs, outputs | int8, GOP/s | float32, GOP/s | bfloat16, GOP/s |\n|---|---|---|---|"
    )
    for rows, inputs, outputs in SHAPES:
        keys = jax.random.split(jax.random.key(0))
        x, w = (
            jax.random.randint(key, shape, -127, 128)
            for key, shape in zip(keys, ((rows, inputs), (inputs, outputs)), strict=True)
        )
        flops = 2 * rows * inputs * outputs
        count = max(1, int(LEAST_FLOPS / flops))
        forms = {"int8": jax.jit(integers), "float32": jax.jit(floats), "bfloat16": jax.jit(floats)}
        pairs = {name: (x.astype(name), w.astype(name)) for name in forms}
        seconds: dict[str, list[float]] = {name: [] for name in forms}
        for turn in range(arguments.turns + 1):
            for name, form in forms.items():
                before = time.perf_counter()
                for _ in range(count):
                    made = form(*pairs[name])
                made.block_until_ready()
                if turn:  # the first one compiles
                    seconds[name].append((time.perf_counter() - before) / count)
        rates = (f"{flops / statistics.median(times) / 1e9:.0f}" for times in seconds.values())
        print(f"| {rows}, {inputs}, {outputs} | {' | '.join(rates)} |", flush=True)


if __name__ == "__main__":
    run_script(main)
