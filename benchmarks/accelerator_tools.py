"""Helpers shared by the parts of `benchmarks/accelerator.py`."""

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import depthwise as single
import jax

from convs2s_jax.commands.shared import read_config
from convs2s_jax.training.run.config import Config

CONFIGS = Path(__file__).parents[1] / "configs"
Found = dict[str, object]
FIRST = 4
"""Ids below are special symbols."""


def preset(name: str, dtype: str) -> Config:
    """Return a configuration of this repository with this dtype."""
    given = [("data.dir", "."), ("model.dtype", dtype)]
    return read_config(str(CONFIGS / f"{name}.py"), given)


def timed(function, *given, repeats: int, end: float) -> list[float]:
    """Return the seconds of each call after the first, which compiles; at least one."""
    jax.block_until_ready(function(*given))
    taken: list[float] = []
    while len(taken) < repeats and (not taken or time.monotonic() < end):
        taken.append(single.seconds(function, *given))
    return taken


def held(tree) -> int:
    """Return the bytes of a tree of arrays."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves(tree))


def memory() -> str:
    """Return the peak memory of the device so far in GB, or "-" if it does not report it."""
    told = jax.devices()[0].memory_stats() or {}
    return digits(told["peak_bytes_in_use"] / 1e9) if "peak_bytes_in_use" in told else "-"


def spread(values: Sequence[float]) -> str:
    """Format minimum, median and maximum."""
    return " / ".join(digits(v) for v in (min(values), statistics.median(values), max(values)))


def digits(value: float) -> str:
    """Format with three significant digits."""
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
