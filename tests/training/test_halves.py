"""Kernels of gated linear units on a mesh with `tensor`: halves side by side, and few exchanges of activations."""

from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from convs2s_jax.models.config import ModelConfig
from convs2s_jax.models.convs2s.decoder import ConvDecoderConfig
from convs2s_jax.models.convs2s.encoder import ConvEncoderConfig
from convs2s_jax.models.convs2s.layers import ConvLayer
from convs2s_jax.scaling import collectives, hlo, programs
from convs2s_jax.training import halves, sharding
from convs2s_jax.training.batch import Batch
from convs2s_jax.training.mesh import ShardingRule
from convs2s_jax.training.run.config import TrainingConfig
from convs2s_jax.training.run.programs import compile_configured, fresh_state
from tests.meshes import mesh_of


@pytest.mark.parametrize("sizes", [(4, 1, 2), (2, 1, 4), (1, 1, 8)], ids=str)
def test_each_device_holds_the_same_columns_of_both_halves(sizes):
    mesh = mesh_of(sizes)
    n, h = sizes[2], 3
    x = np.random.default_rng(0).normal(size=(2, 2 * n * h)).astype("f")
    a, b = np.split(x, 2, axis=1)
    expected = np.stack(
        [np.concatenate([half[:, i * h : (i + 1) * h] for half in (a, b)], axis=1) for i in range(n)], axis=1
    )
    placed = jax.device_put(x, NamedSharding(mesh, P(None, "tensor")))
    found, pull = jax.vjp(jax.jit(partial(halves.paired, mesh=mesh)), placed)
    np.testing.assert_array_equal(found, expected)
    assert found.sharding.is_equivalent_to(NamedSharding(mesh, P(None, "tensor", None)), 3)
    np.testing.assert_array_equal(pull(found)[0], x)  # a permutation: its transpose is its inverse


def test_halves_are_paired_where_devices_divide_them():
    mesh = mesh_of((2, 1, 4))
    assert sharding.in_halves("encoder/blocks/0/conv/w", (3, 8, 16), mesh)
    assert sharding.in_halves("encoder/blocks/0/conv/b", (16,), mesh)
    assert not sharding.in_halves("encoder/blocks/0/conv/b", (12,), mesh)
    assert not sharding.in_halves("decoder/map_out/w", (8, 16), mesh)
    assert not sharding.in_halves("encoder/blocks/0/conv/w", (3, 8, 16), mesh_of((8, 1, 1)))
    assert not sharding.in_halves("banks/0/conv/w", (3, 8, 16), mesh)  # of a classifier, before no gate
    rules = [ShardingRule("conv/w", (None, "tensor", None))]
    assert not sharding.in_halves("encoder/blocks/0/conv/b", (16,), mesh, rules)  # a bias lies as its kernel does


def test_a_block_exchanges_its_input_and_its_gradient():
    """In the compiled gradient of one block each side, arrays as long as a batch only (parts of parameters are short).

    Forward: an all-gather of the input of each convolution, and sums of a query and of maps. Backward: the all-gather
    again, since layers are recomputed, and the sum of the gradient, an all-reduce on CPU and a reduce-scatter on TPUs.
    """
    model = ModelConfig(
        embedding_dim=32,
        dropout=0.1,
        encoder=ConvEncoderConfig(layers=(ConvLayer(32, 3),), max_positions=64),
        decoder=ConvDecoderConfig(layers=(ConvLayer(32, 3),), out_dim=32, max_positions=64),
    )
    training, mesh = TrainingConfig(), mesh_of((1, 1, 8))
    state = jax.eval_shape(
        partial(fresh_state, model=model, training=training, source=64, target=64), jax.random.key(0)
    )
    params = programs.placed(state.params, sharding.shardings(state.params, mesh))
    side = jax.ShapeDtypeStruct((32, 48), jnp.int32)
    batch = programs.placed(Batch(src=side, tgt=side), sharding.batch_sharding(mesh))
    key = programs.placed(jax.eval_shape(lambda: jax.random.key(0)), sharding.replicated(mesh))
    compiled = compile_configured(model, training, mesh).first.lower(params, batch, key).compile()
    found = collectives.of_program(hlo.parse(compiled.as_text()), mesh.shape)
    size, kinds = 32 * 48 * 32 * 4, Counter[str]()
    for each in found:
        kinds[each.kind] += each.size
    assert set(kinds) == {"all-reduce", "all-gather", "collective-permute"}
    assert kinds["collective-permute"] < 0.1 * size
    assert kinds["all-gather"] <= 4 * size
    assert kinds["all-reduce"] < 11.5 * size
