"""Measure the rates of the attached devices, for chips that are not in the table, such as virtual CPU devices.

All devices work at the same time, as in training, because virtual devices share the cores and the memory of a machine.
Each rate is the best of a few repeats, an upper bound like those in the table of chips.
"""

import functools
import time
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from convs2s_jax.nn.types import Array
from convs2s_jax.scaling.chips import Chip

SIDE = 512
"""Rows and columns of the matrices on a CPU device."""
COPIED = 1 << 22
"""Elements of the array that is copied or all-reduced on a CPU device."""
LARGER = 16
"""How much larger both are, counted in elements, on an accelerator."""
REPEATS = 5
EACH = P("all")


@functools.lru_cache(maxsize=64)
def measured(devices: tuple[Any, ...], dtype: str) -> Chip:
    """Describe one of these devices as a chip: FLOP/s of a product, bytes/s of a copy and of an all-reduce.

    They are measured once per process, so that plans for the same devices can be compared. Its memory is what the
    runtime reports, and its network is unknown (0).
    """
    mesh = Mesh(np.asarray(devices), ("all",))
    return Chip(
        name=devices[0].device_kind,
        peaks=MappingProxyType({dtype: product_rate(mesh, dtype)}),
        memory=memory_limit(devices),
        memory_bandwidth=copy_rate(mesh),
        link=exchange_rate(mesh) if len(devices) > 1 else 1.0,
        source="measured on the attached devices",
    )


def memory_limit(devices: Sequence[Any]) -> float:
    """Return the bytes per device of this process that programs may use; 0 if the device does not report it, as on CPU.

    A GPU has more memory, of which JAX reserves a part at start.
    """
    here = [device for device in devices if device.process_index == jax.process_index()]
    return float(min((device.memory_stats() or {}).get("bytes_limit", 0) for device in here))


def product_rate(mesh: Mesh, dtype: str) -> float:
    """Measure the FLOP/s of one device while all multiply square matrices."""
    side = int((_larger(mesh) ** 0.5) * SIDE)
    return 2 * side**3 / _seconds(mesh, lambda a: a @ a, (mesh.size * side, side), dtype)


def copy_rate(mesh: Mesh) -> float:
    """Measure the bytes/s that one device reads and writes while all of them add a number to an array."""
    elements = COPIED * _larger(mesh)
    return 2 * 4 * elements / _seconds(mesh, lambda x: x + 1, (mesh.size * elements,), "float32")


def exchange_rate(mesh: Mesh) -> float:
    """Measure the bytes/s that one device sends in an all-reduce, counted as in a ring: 2 size (n - 1) / n."""
    elements = COPIED * _larger(mesh) // 4
    seconds = _seconds(mesh, lambda x: jax.lax.psum(x, "all"), (mesh.size * elements,), "float32", out=P())
    return 2 * 4 * elements * (mesh.size - 1) / mesh.size / seconds


def _larger(mesh: Mesh) -> int:
    return 1 if mesh.devices.flat[0].platform == "cpu" else LARGER


def _seconds(
    mesh: Mesh, function: Callable[[Array], Array], shape: tuple[int, ...], dtype: str, out: P = EACH
) -> float:
    """Return the seconds of the fastest call after the first, on shards of an array of ones on all devices at once."""
    x = jax.jit(lambda: jnp.ones(shape, dtype), out_shardings=NamedSharding(mesh, EACH))()
    each = jax.jit(jax.shard_map(function, mesh=mesh, in_specs=EACH, out_specs=out))
    taken = []
    for _ in range(REPEATS + 1):
        before = time.perf_counter()
        jax.block_until_ready(each(x))
        taken.append(time.perf_counter() - before)
    return min(taken[1:])
