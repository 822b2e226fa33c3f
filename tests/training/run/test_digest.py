"""A digest of arrays changes with every bit and with every exchange."""

import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.training.run import digest


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
def test_digest_changes_with_every_bit(dtype):
    values = np.asarray(jnp.asarray(np.random.default_rng(0).normal(0, 40, 6), "float32").astype(dtype))
    seen = {digest.digest({"x": values})["x"]}
    for bit in range(values.nbytes * 8):
        data = bytearray(values.tobytes())
        data[bit // 8] ^= 1 << bit % 8
        seen.add(digest.digest({"x": np.frombuffer(bytes(data), values.dtype)})["x"])
    assert len(seen) == 1 + values.nbytes * 8


@pytest.mark.parametrize("values", [[1.0, -1.0], [1.0, 2.0], [0.0, 1e-30]])
def test_digest_changes_when_two_values_are_exchanged(values):
    for distance in (1, 2, 256, 512):
        x = np.zeros(600, np.float32)
        x[3], x[3 + distance] = values
        exchanged = x.copy()
        exchanged[3], exchanged[3 + distance] = values[::-1]
        assert digest.digest(x) != digest.digest(exchanged)


def test_digest_changes_with_two_signs():
    x = np.arange(1, 9, dtype=np.float32)
    assert digest.digest(x) != digest.digest(x * np.array([1, -1, 1, 1, -1, 1, 1, 1], np.float32))


def test_digest_is_by_path():
    tree = {"a": {"b": jnp.ones(2)}, "c": (jnp.zeros(3), ()), "none": ()}
    assert list(digest.digest(tree)) == ["a/b", "c/0"]
