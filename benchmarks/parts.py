"""Seconds of one and of several processes that share the parts of an output.

    taskset -c 0,1 python benchmarks/parts.py --workdir=RUN --input=FILE [--processes=2] [--parts=8]

Each process computes with one thread. Programs are compiled, and the cache of programs filled, before the measurement.
"""

import argparse
import functools
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"


def seconds(processes: int, flags: list[str], output: str) -> float:
    """Return the time in which this number of processes decodes all parts."""
    cores = sorted(os.sched_getaffinity(0))
    begin = time.monotonic()
    started = [
        subprocess.Popen(
            [sys.executable, "decode.py", *flags, f"--output={output}"],
            cwd=ROOT,
            env={**os.environ, "XLA_FLAGS": ONE_THREAD, "NPROC": "1"},
            preexec_fn=functools.partial(os.sched_setaffinity, 0, [cores[i % len(cores)]]),
            stderr=subprocess.DEVNULL,
        )
        for i in range(processes)
    ]
    if any(process.wait() for process in started):
        raise SystemExit("a process failed: try its command alone")
    return time.monotonic() - begin


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--workdir", "--input"):
        parser.add_argument(name, required=True)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--parts", type=int, default=8)
    options = parser.parse_args()
    given = [f"--{name}={Path(getattr(options, name)).resolve()}" for name in ("workdir", "input")]
    flags = [*given, f"--parts={options.parts}"]
    with tempfile.TemporaryDirectory() as folder:
        seconds(1, flags, f"{folder}/warm")
        one = seconds(1, flags, f"{folder}/one")
        several = seconds(options.processes, flags, f"{folder}/several")
    print(f"1 process: {one:.1f} s; {options.processes} processes: {several:.1f} s; {one / several:.2f} times as fast")


if __name__ == "__main__":
    main()
