"""Rows of tables that are cut over devices: rows are sent, and not the table."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from convs2s_jax.core.config import build
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.nn.embedding import rows
from convs2s_jax.training import gathering, sharding
from convs2s_jax.training.mesh import ROWS, row_shards
from tests.meshes import assert_equal_each, mesh_of
from tests.models.kinds import pair, together
from tests.training.test_kinds_on_a_mesh import LEAST, gradients

RNG = np.random.default_rng(6)
MESHES = [(1, 8, 1), (2, 4, 1), (8, 1, 1), (2, 2, 2), (4, 1, 2)]
E = 8 * gathering.NARROW


def read(sizes, words, dtype=jnp.float32):
    """A table [words, E] and its rows for [8, 3] indices: rows, gradient of the table, and the compiled program."""
    mesh = mesh_of(sizes)
    own = sharding.spec("embedding/table", (words, E), mesh, cut=sharding.state_axis(mesh))
    table = RNG.normal(size=(words, E)).astype(np.float32)
    indices, weights = RNG.integers(0, words, (8, 3)), RNG.normal(size=(8, 3, E)).astype(np.float32)

    def loss(table, indices, weights):
        part = gathering.constrained({"embedding": {"table": table}}, mesh)["embedding"]["table"]
        found = rows(part.astype(dtype), indices)
        return jnp.sum(found * weights), found

    given = jax.device_put(
        (table, indices, weights),
        (NamedSharding(mesh, own), *[NamedSharding(mesh, P(ROWS))] * 2),
    )
    program = jax.jit(jax.grad(loss, has_aux=True)).lower(*given).compile()
    gradient, found = program(*given)
    assert gradient.sharding.spec == given[0].sharding.spec
    return (table, indices, weights), (found, gradient), program.as_text()


def gathered(text):
    """Numbers of elements of the arrays that an all-gather makes."""
    shapes = re.findall(r"= \w+\[([\d,]+)\][^=]* all-gather\(", text)
    return [np.prod([int(n) for n in shape.split(",")]) for shape in shapes]


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_rows_and_their_gradient_are_those_of_the_whole_table(sizes):
    (table, indices, weights), (found, gradient), text = read(sizes, 40)
    np.testing.assert_array_equal(found, table[indices])
    expected = np.zeros_like(table)
    np.add.at(expected, indices, weights)
    np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-6)
    assert max(gathered(text), default=0) < table.size
    assert "all-to-all" in text


def test_rows_are_sent_in_the_dtype_of_the_computation():
    (table, indices, _), (found, _), _ = read((1, 8, 1), 40, jnp.bfloat16)
    np.testing.assert_array_equal(found, np.asarray(jnp.asarray(table[indices]).astype(jnp.bfloat16), np.float32))
    assert found.dtype == jnp.float32


@pytest.mark.parametrize("sizes", MESHES, ids=str)
def test_a_table_smaller_than_the_rows_of_a_device_is_made_whole(sizes):
    (table, indices, _), (found, _), text = read(sizes, 3)
    np.testing.assert_array_equal(found, table[indices])
    assert table.size in gathered(text)
    assert indices.size >= 3 * row_shards(mesh_of(sizes))


@pytest.mark.drill
@pytest.mark.parametrize("sizes", [(2, 4, 1), (2, 2, 2)], ids=str)
@pytest.mark.parametrize(
    ("encoder", "decoder", "tied"), [*[(*kinds, False) for kinds in together()], ("conv", "conv", True)]
)
def test_gradients_of_every_kind_are_those_of_one_device(encoder, decoder, tied, sizes, monkeypatch):
    monkeypatch.setattr(gathering, "NARROW", 1)
    sides = pair(encoder, decoder)
    sides["decoder"] |= {"tied_output": tied, **({"out_dim": 32} if "out_dim" in sides["decoder"] and tied else {})}
    cfg = build(ModelConfig, {"embedding_dim": 32, "dropout": 0.3, **sides})
    assert_equal_each(gradients(cfg, mesh_of(sizes)), gradients(cfg), least=LEAST)
