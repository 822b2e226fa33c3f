"""Digests of arrays: sums of integers, so they are the same however the arrays are laid out over devices."""

import json
import zlib
from typing import Any

import jax
import jax.numpy as jnp

from convs2s_jax.nn.types import Array, Tree


def digest(tree: Tree, *, version: int = 2) -> dict[str, int]:
    """A number in [0, 2^32) for each array, by its path.

    It changes with any change of one element, and with others but for a chance of 2^-32; not with the array's layout.

    Args:
      tree: of arrays.
      version: of the sum, for checkpoints of an earlier format.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    sums = jax.device_get([_SUMS[version](leaf) for _, leaf in leaves])
    return {path_of(path): int(value) for (path, _), value in zip(leaves, sums, strict=True)}


def path_of(path: tuple[Any, ...]) -> str:
    """The path of a leaf as text: "encoder/blocks/0/w"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def digest_of_record(record: dict[str, Any]) -> int:
    """The same for a record of JSON values."""
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())


def _bits(x: Array) -> tuple[Array, Array]:
    """The bits of each element as uint32 (of 8-byte elements two), and their indices."""
    unsigned = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint32}[x.dtype.itemsize]
    bits = jax.lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32).reshape(-1)
    return bits, jnp.arange(bits.size, dtype=jnp.uint32)


@jax.jit
def _weighted_sum(x: Array) -> Array:
    """sum_i bits_i (2 i + 1) mod 2^32: blind to two changed signs, and to exchanges of some values."""
    bits, i = _bits(x)
    return jnp.sum(bits * (2 * i + 1), dtype=jnp.uint32)


@jax.jit
def _mixed_sum(x: Array) -> Array:
    """sum_i mix(bits_i + c i) mod 2^32, with MurmurHash3's finalizer: a bijection, so one change is never lost."""
    bits, i = _bits(x)
    h = bits + jnp.uint32(0x9E3779B9) * i
    h = (h ^ (h >> 16)) * jnp.uint32(0x85EBCA6B)
    h = (h ^ (h >> 13)) * jnp.uint32(0xC2B2AE35)
    return jnp.sum(h ^ (h >> 16), dtype=jnp.uint32)


_SUMS = {1: _weighted_sum, 2: _mixed_sum}
