"""Sums over devices as permutations among neighbours, which XLA overlaps with other operations.

A reduce-scatter over n = a b devices, i = p b + q: first in rings of the a devices with the same q, whose p-th then has
the p-th of a pieces, then in rings of the b devices with the same p. Each device sends (n - 1) / n of the array, half
of what an all-reduce sends, in a + b - 2 messages. XLA's TPU compiler has no reduce-scatter over two axes of a torus,
and does not overlap its all-reduces with anything.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P

from convs2s_jax.nn.types import Array
from convs2s_jax.training.mesh import AXES, ROWS, row_shards

LEAST = 16
"""Minimum number of devices for sums as permutations; sums over few devices are fast."""
PLATFORMS = ("tpu",)
"""Where sums are written as permutations. On GPUs NCCL has its own reduce-scatters."""


def summed(x: Array, dtype: Any) -> Array:
    """Sum x [n, O, ...] over n, where each of n devices has one entry: [O, ...], sharded along O.

    If the program being traced (`jax.sharding.use_abstract_mesh`) is for other devices than `PLATFORMS` or for few, or
    O cannot be sharded, this is a plain sum.

    Args:
      x: the array to sum.
      dtype: in which partial sums are sent.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if not _fits(mesh, x):
        return jnp.sum(x, axis=0)
    scatter = partial(_scattered, count=x.shape[0], dtype=dtype)
    made = jax.shard_map(scatter, mesh=mesh, in_specs=P(ROWS), out_specs=P(ROWS), check_vma=False)
    total: Array = made(x)
    return total


def _fits(mesh: AbstractMesh, x: Array) -> bool:
    if mesh.empty or mesh.axis_names != AXES or set(mesh.axis_types) != {AxisType.Auto}:
        return False
    device = mesh.abstract_device
    if device is None or device.platform not in PLATFORMS:
        return False
    count = row_shards(mesh)
    return mesh.size == count == x.shape[0] >= LEAST and x.ndim > 1 and x.shape[1] % count == 0


def _scattered(x: Array, *, count: int, dtype: Any) -> Array:
    """Within `shard_map`: x [1, O, ...] of each device to its shard [O / n, ...] of the sum."""
    number = lax.axis_index(ROWS)
    b = count // _near_root(count)
    a = count // b
    columns = [[p * b + q for p in range(a)] for q in range(b)]
    rows = [[p * b + q for q in range(b)] for p in range(a)]
    x = _ring(x[0].reshape(a, -1, *x.shape[2:]), number // b, columns, dtype)
    return _ring(x.reshape(b, -1, *x.shape[1:]), number % b, rows, dtype)


def _ring(x: Array, number: Array, groups: Sequence[Sequence[int]], dtype: Any) -> Array:
    """Sum x[r] over a device's group, in which it is number r of len(x): piece r goes round and ends there.

    The ring is 0, 2, 4, ..., 5, 3, 1: no message crosses more than two links, even on a line of devices that is not
    closed. XLA's TPU compiler sends longer ones synchronously.
    """
    size = len(x)
    order = [*range(0, size, 2), *reversed(range(1, size, 2))]
    following = [(group[order[i - 1]], group[order[i]]) for group in groups for i in range(size)]
    piece, place = jnp.asarray(order), jnp.asarray([order.index(i) for i in range(size)])[number]
    total = x[piece[(place - 1) % size]]
    for step in range(2, size + 1):
        received = lax.ppermute(total.astype(dtype), ROWS, following)
        received, place = lax.optimization_barrier((received, place))  # XLA would copy all pieces before the first
        total = received.astype(x.dtype) + x[piece[(place - step) % size]]
    return total


def _near_root(count: int) -> int:
    """The largest divisor up to the square root."""
    return max(d for d in range(1, math.isqrt(count) + 1) if count % d == 0)
