"""Run batches on several devices, a few at a time."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from convs2s_jax.search.buckets import Bucket
from convs2s_jax.search.generate import AXIS
from convs2s_jax.search.hypotheses import Hypotheses

T = TypeVar("T")

IN_FLIGHT = 2
"""Batches in progress at once: while one does serial work, the matrix products of the other keep the cores busy."""


def put(arrays: Any, mesh: Mesh | None) -> Any:
    """Put arrays on the default device, or shard their rows over the devices of a mesh."""
    return jax.device_put(arrays, None if mesh is None else NamedSharding(mesh, P(AXIS)))


def replicator(members: T) -> Callable[[Mesh | None], T]:
    """Return a function mesh -> parameters, which copies them to the devices of each mesh only once."""
    copies: dict[Mesh, T] = {}
    one_at_a_time = threading.Lock()

    def on(mesh: Mesh | None) -> T:
        if mesh is None:
            return members
        with one_at_a_time:
            if mesh not in copies:
                copies[mesh] = jax.device_put(members, NamedSharding(mesh, P()))
            return copies[mesh]

    return on


def spread(
    plan: Sequence[Bucket],
    run: Callable[[Sequence[Bucket], Mesh | None], Any],
    devices: Sequence[jax.Device] | None,
    progress: Callable[[int], None] | None,
) -> Iterator[tuple[int, Hypotheses, np.ndarray | None]]:
    """Run all batches, one per device and a few at a time. Yield each sentence's index and its row of the results.

    Batches, and the program that runs on each device, do not depend on the number of devices.
    """
    mesh, groups = grouped(plan, devices)
    first_come: dict[tuple[int, ...], threading.Lock] = {g[0].shape: threading.Lock() for g in groups}
    compiled: set[tuple[int, ...]] = set()

    def work(group: Sequence[Bucket]) -> Any:
        shape = group[0].shape
        with contextlib.nullcontext() if shape in compiled else first_come[shape]:
            started = run(group, mesh)
            compiled.add(shape)
        return jax.device_get(started)

    pool = ThreadPoolExecutor(IN_FLIGHT)
    try:
        for group, (found, weights) in zip(groups, pool.map(work, groups), strict=True):
            for row, i in enumerate(i for bucket in group for i in bucket.padded):
                if i is not None:
                    yield i, jax.tree.map(lambda x: x[row], found), None if weights is None else weights[row]  # noqa: B023
            if progress is not None:
                progress(sum(len(bucket.indices) for bucket in group))
    finally:
        pool.shutdown(cancel_futures=True)


def grouped(plan: Sequence[Bucket], devices: Sequence[jax.Device] | None) -> tuple[Mesh | None, list[list[Bucket]]]:
    """Choose the devices for a plan, and form groups of adjacent batches of equal shape, one batch for each device.

    Groups are filled up with empty batches. Arguments are as in `spread`.

    Returns:
      A mesh of the devices, None for the default device, and the groups.

    Raises:
      ValueError: there are no devices.
    """
    chosen = list(devices) if devices is not None else jax.local_devices()
    if not chosen:
        raise ValueError("devices is empty: pass at least one device, or None for all local ones")
    size = max(1, min(len(chosen), len(plan)))
    mesh = Mesh(np.array(chosen[:size]), (AXIS,)) if devices is not None or size > 1 else None
    groups: list[list[Bucket]] = []
    for bucket in plan:
        if groups and len(groups[-1]) < size and groups[-1][0].shape == bucket.shape:
            groups[-1].append(bucket)
        else:
            groups.append([bucket])
    return mesh, [group + [group[0]._replace(indices=())] * (size - len(group)) for group in groups]
