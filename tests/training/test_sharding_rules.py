"""Sharding rules, built-in and of the configuration, and the table of what they resolve to."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from convs2s_jax.commands.config import shardings
from convs2s_jax.core.errors import UserError
from convs2s_jax.nn.embedding import rows
from convs2s_jax.training import sharding
from convs2s_jax.training.mesh import ShardingRule
from convs2s_jax.training.parallel import compile_steps
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.programs import vocabulary_sizes
from convs2s_jax.training.step import init_state
from tests import tiny
from tests.meshes import assert_equal_each, mesh_of
from tests.states import first_state
from tests.training.test_own_update import SquaredSums

P = jax.sharding.PartitionSpec
RULES = (
    ShardingRule("encoder/embedding/table", (None, "tensor")),
    ShardingRule("decoder/blocks/*/conv/w", (None, "tensor", None)),
    ShardingRule("decoder/map_out/w", (None, None)),
)


@pytest.mark.parametrize(
    ("name", "shape", "between", "in_use"),
    [
        ("step", (), P(), P()),
        ("encoder/embedding/table", (20, 8), P("fsdp", "tensor"), P(None, "tensor")),
        ("decoder/embedding/table", (20, 8), P("tensor", "fsdp"), P("tensor", None)),
        ("decoder/blocks/1/conv/w/v", (4, 8, 16), P(None, "tensor", "fsdp"), P(None, "tensor", None)),
        ("encoder/blocks/0/conv/w/v", (3, 8, 16), P(None, "fsdp", "tensor"), P(None, None, "tensor")),
        ("optimizer/trace/encoder/blocks/0/conv/w/g", (1, 1, 16), P(None, None, "tensor"), P(None, None, "tensor")),
        ("decoder/map_out/w/v", (8, 16), P(None, "fsdp"), P(None, None)),
        ("decoder/blocks/0/attention/query/b", (8,), P(None), P(None)),
        ("decoder/output", (20,), P("tensor"), P("tensor")),
        ("decoder/output/b", (7,), P(None), P(None)),  # 7 words on 2 devices
        ("taps/scores", (3, 8), P(None, "tensor"), P(None, "tensor")),
        ("optimizer/rows/conv/w", (3,), P(), P()),
    ],
)
def test_rules_of_the_configuration_come_before_the_built_in_ones(name, shape, between, in_use):
    mesh = mesh_of((2, 2, 2))
    assert sharding.spec(name, shape, mesh, cut="fsdp", rules=RULES) == between
    assert sharding.spec(name, shape, mesh, rules=RULES) == in_use


@pytest.mark.parametrize(("name", "shape"), [("decoder/gate", (3,)), ("conv/w", (3, 4))])
def test_a_parameter_without_a_rule_is_refused(name, shape):
    with pytest.raises(ValueError, match=r"\): no rule of training.sharding.RULES"):
        sharding.spec(name, shape, mesh_of((2, 2, 2)))


@pytest.mark.parametrize("name", ["adafactor", "sm3"])
def test_arrays_of_an_optimiser_that_are_not_like_the_parameter_are_not_cut(name):
    """Rows and columns of squares, as adafactor has them."""
    optimizer = optax.adafactor(1e-2, min_dim_size_to_factor=4) if name == "adafactor" else optax.sm3(1e-2)
    params = {"embedding": {"table": jnp.zeros((20, 8))}, "conv": {"w": jnp.zeros((3, 8, 16))}}
    state = jax.eval_shape(lambda params: init_state(params, optimizer), params)
    placed = sharding.shardings(state, mesh_of((2, 2, 2)))
    jax.tree.map(lambda leaf, at: at.shard_shape(leaf.shape), state, placed)
    assert placed.params["embedding"]["table"].spec == P("tensor", "fsdp")
    leaves = zip(jax.tree.leaves(state.optimizer), jax.tree.leaves(placed.optimizer), strict=True)
    assert any(leaf.shape and at.spec == P() for leaf, at in leaves)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([("b", ("fsdp",))], r"^config\.mesh\.rules\[0\]\.axes\[0\] is 'fsdp'; available: tensor"),
        ([("conv/w", (None, "tensor", "tensor"))], r"^config\.mesh\.rules\[0\]\.axes is .*: tensor can shard only one"),
        ([("conv/x", (None,))], r"^mesh\.rules\[0\]\.path is 'conv/x': it matches no parameter that earlier"),
        (
            [("b", ("tensor",)), ("conv/b", (None,))],
            r"^mesh\.rules\[1\]\.path is 'conv/b': .* that earlier rules leave",
        ),
        ([("conv/w", (None, "tensor"))], r"rules\[0\]\.axes has 2 entries, but encoder/blocks/0/conv/w/v has 3 axes"),
    ],
)
def test_rules_that_do_not_fit_are_refused_before_anything_is_written(rules, message, tmp_path):
    with pytest.raises(UserError, match=message):
        train(tiny.config(mesh__rules=rules), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def lookup_loss(params, batch, key):
    """A table of which rows are looked up, several of them often, and the same table as a softmax layer."""
    del key
    z = jnp.tanh(rows(params["table"], batch["x"]) @ params["w"]) @ params["table"].T
    return SquaredSums(loss=jnp.sum(z * batch["c"]), tokens=jnp.asarray(batch["x"].size))


@pytest.mark.parametrize(
    ("way", "sizes", "axes"),
    [
        ("jit", (2, 2, 2), ("tensor", None)),
        ("jit", (4, 1, 2), (None, "tensor")),
        ("shard_map", (4, 2, 1), (None, None)),
        ("shard_map", (4, 1, 2), ("tensor", None)),
    ],
    ids=str,
)
def test_gradients_of_cut_tables_are_those_of_whole_ones(way, sizes, axes):
    """Against numpy, which adds the gradient of each lookup in turn: an exchange too many or too few would show."""
    rng = np.random.default_rng(3)
    table, w = rng.normal(size=(16, 8)), rng.normal(size=(8, 8))
    x, c = rng.integers(0, 16, (8, 40)) // rng.integers(1, 9, (8, 40)), rng.normal(size=(8, 40, 16))
    h = np.tanh(table[x] @ w)
    dz = (c @ table) * (1 - h**2)
    expected = {"table": np.einsum("BTV,BTE->VE", c, h), "w": np.einsum("BTE,BTF->EF", table[x], dz)}
    np.add.at(expected["table"], x, dz @ w.T)
    rules = [ShardingRule("table", axes), ShardingRule("w", (None, "tensor"))]
    mesh = mesh_of(sizes)
    params = {"table": np.float32(table), "w": np.float32(w)}
    params = jax.device_put(params, sharding.shardings(params, mesh, rules=rules))
    batch = jax.device_put({"x": x.astype(np.int32), "c": np.float32(c)}, sharding.batch_sharding(mesh))
    step = compile_steps(lookup_loss, optax.sgd(0.1), mesh, parallel=way, rules=rules)
    gradients, _ = step.first(params, batch, None)
    assert_equal_each(gradients, expected)
    assert gradients["table"].sharding.is_equivalent_to(params["table"].sharding, 2)


def test_the_table_says_what_a_device_holds():
    cfg = tiny.config(
        mesh__data=2,
        mesh__fsdp=2,
        mesh__tensor=2,
        mesh__rules=[("encoder/embedding/table", (None, "tensor"))],
        model__encoder__layers=[[16, 3]] * 3 + [[32, 3]],
    )
    mesh = mesh_of((2, 2, 2))
    state = first_state(jax.random.key(0), cfg.model, cfg.training, **vocabulary_sizes(cfg))
    params = jax.device_put(state.params, sharding.shardings(state.params, mesh, rules=cfg.mesh.rules))
    leaves = jax.tree.leaves(params)
    here, whole = sharding.stored_bytes(params)
    assert here == sum(x.addressable_shards[0].data.nbytes for x in leaves)
    assert whole == sum(x.nbytes for x in leaves)
    lines = [" ".join(line.split()) for line in shardings(cfg, 8).splitlines()]
    assert sum(int(line.split()[1]) for line in lines if line.startswith(("encoder/", "decoder/"))) == len(leaves)
    assert "encoder/blocks/*/conv/w/v 3 [3, 16, 32] -, fsdp, tensor 4.61 kB conv/w" in lines
    assert re.search(r"parameters: (.*) per device of \1 in total", shardings(tiny.config(parallel="pmap"), 8))
