"""A digest of arrays changes with every bit and with every exchange."""

import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.training.run.checkpoints import digest


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
def test_digest_changes_with_every_bit(dtype):
    values = np.asarray(jnp.asarray(np.random.default_rng(0).normal(0, 40, 6), "float32").astype(dtype))
    seen = {digest.digest({"x": values})["x"]}
    for bit in range(values.nbytes * 8):
        data = bytearray(values.tobytes())
        data[bit // 8] ^= 1 << bit % 8
        seen.add(digest.digest({"x": np.frombuffer(bytes(data), values.dtype)})["x"])
    assert len(seen) == 1 + values.nbytes * 8


def test_digest_is_by_path():
    tree = {"a": {"b": jnp.ones(2)}, "c": (jnp.zeros(3), ()), "none": ()}
    assert list(digest.digest(tree)) == ["a/b", "c/0"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8", "float64", "bool"])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (3, 40_000)])
def test_digest_is_that_of_the_formula(dtype, shape):
    """In Python's integers, also where a piece ends and where an array is not contiguous."""
    values = np.random.default_rng(1).normal(0, 40, shape[::-1]).astype(jnp.dtype(dtype)).T
    parts = np.frombuffer(values.tobytes(), {1: "u1", 2: "u2"}.get(values.itemsize, "u4")).tolist()
    assert digest.digest({"x": values})["x"] == sum(mixed(bits, i) for i, bits in enumerate(parts)) % 2**32


def mixed(bits: int, i: int) -> int:
    h = (bits + 0x9E3779B9 * i) % 2**32
    h = (h ^ h >> 16) * 0x85EBCA6B % 2**32
    h = (h ^ h >> 13) * 0xC2B2AE35 % 2**32
    return h ^ h >> 16
