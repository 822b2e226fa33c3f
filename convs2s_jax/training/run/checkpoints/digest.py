"""Digests of arrays: sums of integers, so they do not depend on how the arrays are sharded over devices.

Arrays in host memory are summed on the host, in pieces that fit into its caches: compiling a program for each shape
would take longer than all of the sums. Other arrays are summed where they are.
"""

import json
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from convs2s_jax.nn.trees import path_of
from convs2s_jax.nn.types import Array, Tree
from convs2s_jax.training import dispatch

UNSIGNED = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint32"}
"""The type that the bits of an element are read as, by its size in bytes; 8 bytes are read as two numbers."""
PIECE = 2**16
"""Number of elements of a host array that are mixed at a time."""


def digest(tree: Tree) -> dict[str, int]:
    """Return a number in [0, 2^32) for each array, by its path.

    A change of a single element always changes the digest; other changes are missed with probability 2^-32. The
    sharding of an array has no effect.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    sums = jax.device_get([_sum_on_host(leaf) if _is_on_host(leaf) else _mixed_sum(leaf) for _, leaf in leaves])
    return {path_of(path): int(value) for (path, _), value in zip(leaves, sums, strict=True)}


def digest_of_record(record: dict[str, Any]) -> int:
    """Return a number in [0, 2^32) for a record of JSON values."""
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())


@dispatch.jit
def _mixed_sum(x: Array) -> Array:
    """sum_i mix(bits_i + c i) mod 2^32, with MurmurHash3's finalizer: a bijection, so one change is never lost.

    A plain sum of bits times odd factors would miss two changed signs, and swaps of some values.
    """
    bits = jax.lax.bitcast_convert_type(x, UNSIGNED[x.dtype.itemsize]).astype(jnp.uint32).reshape(-1)
    h = bits + jnp.uint32(0x9E3779B9) * jnp.arange(bits.size, dtype=jnp.uint32)
    h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
    return jnp.sum(h ^ (h >> 16), dtype=jnp.uint32)


def _is_on_host(x: Array | np.ndarray) -> bool:
    """Whether the whole array is in the memory of this process."""
    if not isinstance(x, jax.Array):
        return True
    return len(x.sharding.device_set) == 1 and all(device.platform == "cpu" for device in x.devices())


def _sum_on_host(x: Array | np.ndarray) -> int:
    """The same as `_mixed_sum`, without compilation."""
    bits = np.ascontiguousarray(x).reshape(-1)
    bits = bits.view(UNSIGNED[bits.itemsize])
    total = 0
    for begin in range(0, bits.size, PIECE):
        piece = bits[begin : begin + PIECE].astype(np.uint32)
        h = np.arange(begin, begin + len(piece)).astype(np.uint32)
        h *= np.uint32(0x9E3779B9)
        h += piece
        h ^= h >> np.uint32(16)
        h *= np.uint32(0x85EBCA6B)
        h ^= h >> np.uint32(13)
        h *= np.uint32(0xC2B2AE35)
        h ^= h >> np.uint32(16)
        total += int(np.sum(h, dtype=np.uint64))
    return total % 2**32
