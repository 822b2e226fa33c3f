"""Reproduce a program that never ends:  python benchmarks/upstream/batched_qr.py [--calls=400] [--matrices=3]

On CPUs, in jax 0.10.2. For a bug report to JAX; it only needs jax. jaxlib's LAPACK kernels split a batch of matrices
into tasks for XLA's pool of threads, and wait for them in a thread of the same pool. If as many of these kernels wait
at the same time as the pool has threads, the tasks never begin. On 2 cores each of four runs of 400 calls hung, and
none with a single matrix per kernel, which needs no tasks, nor two runs each with jax 0.11.2 and 0.12.0.1 (28 November
2026). The exit status is 1 if a call takes longer than 20 s.
"""

import argparse
import faulthandler
import os
import sys
import time
from functools import partial

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp

KERNELS, UNITS, PATIENCE = 8, 256, 20.0


@partial(jax.jit, static_argnums=1)
def factorised(key: jax.Array, matrices: int) -> list[jax.Array]:
    """QR of random batches of matrices [matrices, UNITS, UNITS]: kernels that do not depend on each other."""
    keys = jax.random.split(key, KERNELS)
    return [jnp.linalg.qr(jax.random.normal(each, (matrices, UNITS, UNITS)))[0] for each in keys]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--matrices", type=int, default=3, help="matrices in a batch")
    arguments = parser.parse_args()
    print(f"jax {jax.__version__}, {os.cpu_count()} cores", flush=True)
    jax.block_until_ready(factorised(jax.random.key(0), arguments.matrices))
    before = time.monotonic()
    for call in range(arguments.calls):
        faulthandler.dump_traceback_later(PATIENCE, exit=True)  # with status 1
        jax.block_until_ready(factorised(jax.random.key(call), arguments.matrices))
        if call % 100 == 99:
            print(f"{call + 1} calls in {time.monotonic() - before:.0f} s", flush=True)
    faulthandler.cancel_dump_traceback_later()
    sys.exit(0)
