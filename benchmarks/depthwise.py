"""Speed of depthwise convolutions:  python benchmarks/depthwise.py

Depthwise, lightweight and dynamic convolutions: `nn.depthwise` and XLA's grouped convolution, the forward pass alone
and with both gradients. They take turns, so that other load on the machine affects all equally. Prints minimum and
median times, and the rates of an array copy and of a matrix product in the same run.
"""

import argparse
import statistics
import time

import jax
import jax.numpy as jnp
from machine import describe, positive, product_rate, run_script

from convs2s_jax.nn.depthwise import depthwise


def grouped(w, x):
    """XLA's grouped convolution with one group per channel."""
    dimensions = ("NWC", "WIO", "NWC")
    return jax.lax.conv_general_dilated(
        x, w[:, None], (1,), "VALID", dimension_numbers=dimensions, feature_group_count=x.shape[-1]
    )


def grouped_by_head(w, x):
    """Like `grouped`, with the kernel of each head repeated for its channels."""
    return grouped(jnp.repeat(w, x.shape[-1] // w.shape[1], axis=1), x)


OPERATIONS = {
    "depthwise": {"products": depthwise, "grouped": grouped},
    "lightweight": {"products": depthwise, "grouped": grouped_by_head},
    "dynamic": {"products": depthwise},
}


def copy_rate() -> float:
    """Return the bytes read and written per second when adding one to 64 MB, the best of 5."""
    x = jnp.zeros(2**24)
    add = jax.jit(lambda x: x + 1.0)
    add(x).block_until_ready()
    return 2 * x.nbytes / min(seconds(add, x) for _ in range(5))


def seconds(function, *arguments) -> float:
    """Return the seconds of one call."""
    before = time.perf_counter()
    jax.block_until_ready(function(*arguments))
    return time.perf_counter() - before


def main() -> None:
    """Run the measurements and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=positive, default=64)
    parser.add_argument("--length", type=positive, default=32)
    parser.add_argument("--channels", type=positive, nargs="+", default=[256, 512])
    parser.add_argument("--widths", type=positive, nargs="+", default=[3, 7, 15, 31])
    parser.add_argument("--heads", type=positive, default=4)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--repeats", type=positive, default=9)
    arguments = parser.parse_args()
    print(describe())
    print(f"product {product_rate(arguments.dtype) / 1e9:.0f} GFLOP/s, copy {copy_rate() / 1e9:.1f} GB/s")
    print("convolution channels width form      forward ms (median)  with gradients (median)")
    B, T, H = arguments.rows, arguments.length, arguments.heads
    for channels in arguments.channels:
        for width in arguments.widths:
            kernels = {"depthwise": (width, channels), "lightweight": (width, H), "dynamic": (B, T, width, H)}
            keys = jax.random.split(jax.random.key(0), 3)
            x = jax.random.normal(keys[0], (B, T + width - 1, channels)).astype(arguments.dtype)
            dy = jax.random.normal(keys[1], (B, T, channels)).astype(arguments.dtype)
            for operation, shape in kernels.items():
                w = jax.random.normal(keys[2], shape).astype(arguments.dtype)
                measure(operation, w, x, dy, arguments.repeats)


def measure(operation: str, w, x, dy, repeats: int) -> None:
    """Print one row for each form."""
    programs = {}
    for name, form in OPERATIONS[operation].items():
        both = jax.jit(lambda w, x, form=form: (lambda y, pull: (y, pull(dy)))(*jax.vjp(form, w, x)))
        programs[name] = (jax.jit(form), both)
    times = {name: ([], []) for name in programs}
    for repeat in range(repeats + 1):
        for name, pair in programs.items():
            for program, found in zip(pair, times[name], strict=True):
                taken = seconds(program, w, x)
                if repeat:  # the first call compiles
                    found.append(taken)
    width = w.shape[-2]
    for name, (forward, both) in times.items():
        cells = (f"{1e3 * min(t):8.2f} ({1e3 * statistics.median(t):6.2f})" for t in (forward, both))
        print(f"{operation:11} {x.shape[-1]:8} {width:5} {name:9}", *cells, flush=True)


if __name__ == "__main__":
    run_script(main)
