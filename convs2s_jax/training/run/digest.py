"""Digests of arrays: sums of integers, so they are the same however the arrays are laid out over devices."""

import json
import zlib
from typing import Any

import jax
import jax.numpy as jnp

from convs2s_jax.nn.trees import path_of
from convs2s_jax.nn.types import Array, Tree
from convs2s_jax.training import dispatch


def digest(tree: Tree) -> dict[str, int]:
    """A number in [0, 2^32) for each array, by its path.

    A change of a single element always changes the digest; other changes are missed with probability 2^-32. The layout
    of an array over devices has no effect.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    sums = jax.device_get([_mixed_sum(leaf) for _, leaf in leaves])
    return {path_of(path): int(value) for (path, _), value in zip(leaves, sums, strict=True)}


def digest_of_record(record: dict[str, Any]) -> int:
    """The same for a record of JSON values."""
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())


@dispatch.jit
def _mixed_sum(x: Array) -> Array:
    """sum_i mix(bits_i + c i) mod 2^32, with MurmurHash3's finalizer: a bijection, so one change is never lost.

    A plain sum of bits times odd factors would miss two changed signs, and exchanges of some values.
    """
    unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}[x.dtype.itemsize]
    bits = jax.lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32).reshape(-1)
    h = bits + jnp.uint32(0x9E3779B9) * jnp.arange(bits.size, dtype=jnp.uint32)
    h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
    return jnp.sum(h ^ (h >> 16), dtype=jnp.uint32)
