"""Sharding rules of the configuration, and the table of what they resolve to."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from convs2s_jax.commands.config import shardings as table_of
from convs2s_jax.core.config import build, override
from convs2s_jax.core.errors import UserError
from convs2s_jax.nn.embedding import rows
from convs2s_jax.nn.trees import path_of
from convs2s_jax.training import sharding
from convs2s_jax.training.mesh import MeshConfig, ShardingRule, abstract
from convs2s_jax.training.parallel import compile_steps
from convs2s_jax.training.run.loop import train
from convs2s_jax.training.run.programs import abstract_state, vocabulary_sizes
from convs2s_jax.training.step import init_state
from tests import tiny
from tests.meshes import assert_equal_each, mesh_of
from tests.states import first_state
from tests.training.test_own_update import SquaredSums

P = jax.sharding.PartitionSpec
RULES = (
    ShardingRule("encoder/embedding/table", (None, "fsdp+tensor")),
    ShardingRule("decoder/blocks/*/conv/w", ("data", None, None)),
    ShardingRule("conv/w/v", (None, "fsdp", "tensor")),
    ShardingRule("decoder/map_out/w", (None, None)),
)
LAYERS = {"model__encoder__layers": [[16, 3]] * 3 + [[32, 3]], "model__decoder__layers": [[16, 2]] * 2}


def test_rules_of_the_configuration_come_before_the_built_in_ones():
    """And say alone how an array is cut: the state's axis is not added."""
    mesh = mesh_of((2, 2, 2))
    cases = [
        ("encoder/embedding/table", (20, 8), P(None, ("tensor", "fsdp")), P(None, "tensor")),
        ("encoder/embedding/table", (20, 6), P(None, "tensor"), P(None, "tensor")),  # 4 devices do not divide 6
        ("decoder/blocks/1/conv/w/v", (4, 8, 16), P("data", None, None), P(None, None, None)),
        ("optimizer/trace/decoder/blocks/1/conv/w/g", (1, 1, 16), P(None, None, None), P(None, None, None)),
        ("encoder/blocks/0/conv/w/v", (3, 8, 16), P(None, "fsdp", "tensor"), P(None, None, "tensor")),
        ("decoder/map_out/w/v", (8, 16), P(None, None), P(None, None)),
        ("encoder/map_in/w/v", (8, 16), P("fsdp", "tensor"), P(None, "tensor")),  # the built-in rule
    ]
    for name, shape, between, in_use in cases:
        assert sharding.spec(name, shape, mesh, cut="fsdp", rules=RULES) == between, name
        assert sharding.spec(name, shape, mesh, rules=RULES) == in_use, name


@pytest.mark.parametrize(
    ("length", "entry"),
    [(8, ("fsdp", "data")), (9, "tensor"), (10, "data"), (12, ("tensor", "fsdp")), (24, ("tensor", "fsdp", "data"))],
)
def test_an_axis_that_does_not_divide_takes_no_other_with_it(length, entry):
    mesh, rules = abstract(MeshConfig(data=2, fsdp=4, tensor=3), 24), [ShardingRule("b", ("data+fsdp+tensor",))]
    assert sharding.spec("b", (length,), mesh, cut="fsdp", rules=rules) == P(entry)


@pytest.mark.parametrize("name", ["adafactor", "sm3"])
def test_arrays_of_an_optimiser_that_are_not_like_the_parameter_are_not_cut(name):
    """Rows and columns of squares, as adafactor has them; a parameter of other axes than its rule's stays a mistake."""
    optimizer = optax.adafactor(1e-2, min_dim_size_to_factor=4) if name == "adafactor" else optax.sm3(1e-2)
    shapes = {"embedding": {"table": (20, 8)}, "conv": {"w": (3, 8, 16)}, "output": {"b": (20,)}}
    params = jax.tree.map(
        lambda shape: jax.ShapeDtypeStruct(shape, jnp.float32),
        shapes,
        is_leaf=lambda x: len(x) and isinstance(x, tuple),
    )
    state = jax.eval_shape(lambda params: init_state(params, optimizer), params)
    mesh = mesh_of((2, 2, 2))
    for rules in ((), (ShardingRule("conv/w", (None, "fsdp", "tensor")),)):
        placed = sharding.shardings(state, mesh, rules=rules)
        jax.tree.map(lambda leaf, at: at.shard_shape(leaf.shape), state, placed)
        assert placed.params["embedding"]["table"].spec == P("tensor", "fsdp")
        assert any(
            leaf.shape and at.spec == P()
            for leaf, at in zip(jax.tree.leaves(state.optimizer), jax.tree.leaves(placed.optimizer), strict=True)
        )


def test_rules_are_read_from_a_command_line_and_from_json():
    text = "[('conv/w', (None, 'fsdp', 'tensor')), ['b', [None]]]"
    cfg = build(MeshConfig, override({}, "rules", text))
    assert cfg.rules == (ShardingRule("conv/w", (None, "fsdp", "tensor")), ShardingRule("b", (None,)))
    assert build(MeshConfig, {"rules": [{"path": "b", "axes": [None]}]}).rules == cfg.rules[1:]


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([("b", ("tensr",))], r"^config\.mesh\.rules\[0\]\.axes contains 'tensr'; did you mean 'tensor'\?"),
        (
            [("conv/w", (None, "fsdp", "tensor+fsdp"))],
            r"^config\.mesh\.rules\[0\]\.axes contains fsdp 2 times: it can shard",
        ),
        ([("conv//w", (None,))], r"^config\.mesh\.rules\[0\]\.path is 'conv//w': use the end of a parameter's path"),
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


def test_taps_stay_whole_between_updates():
    params = {"taps": {"scores": jax.ShapeDtypeStruct((3, 8), jnp.float32)}}
    sharding.check_rules(params, [ShardingRule("taps/scores", (None, "tensor"))])
    with pytest.raises(
        UserError, match=r"axes contains fsdp, but taps/scores stays whole between updates: use tensor only"
    ):
        sharding.check_rules(params, [ShardingRule("scores", (None, "fsdp"))])


@pytest.mark.parametrize(
    ("way", "sizes", "message"),
    [
        ("pmap", (8, 1, 1), r"^mesh\.rules is set with parallel=pmap, which replicates all"),
        ("shard_map", (4, 2, 1), r"axes contains data, but parallel=shard_map gathers over fsdp only"),
    ],
)
def test_ways_refuse_rules_that_they_cannot_follow(way, sizes, message):
    with pytest.raises(UserError, match=message):
        compile_steps(lookup_loss, optax.sgd(0.1), mesh_of(sizes), parallel=way, rules=[ShardingRule("b", ("data",))])


def lookup_loss(params, batch, key):
    """A table of which rows are looked up, several of them often, and the same table as a softmax layer."""
    del key
    z = jnp.tanh(rows(params["table"], batch["x"]) @ params["w"]) @ params["table"].T
    return SquaredSums(loss=jnp.sum(z * batch["c"]), tokens=jnp.asarray(batch["x"].size))


@pytest.mark.parametrize(
    ("way", "sizes", "axes"),
    [
        ("jit", (2, 2, 2), ("tensor+fsdp", None)),
        ("jit", (2, 2, 2), ("fsdp+data", "tensor")),
        ("jit", (4, 1, 2), ("tensor", "data")),
        ("shard_map", (4, 2, 1), ("fsdp", None)),
        ("shard_map", (2, 2, 2), ("tensor+fsdp", None)),
        ("shard_map", (4, 1, 2), ("tensor+data", None)),
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
    spec = sharding.spec("table", (16, 8), mesh, cut=sharding.state_axis(mesh), rules=rules)
    assert gradients["table"].sharding.is_equivalent_to(jax.sharding.NamedSharding(mesh, spec), 2)


def test_the_table_says_what_a_device_holds():
    cfg = tiny.config(
        mesh__data=2, mesh__fsdp=2, mesh__tensor=2, mesh__rules=[(RULES[0].path, RULES[0].axes)], **LAYERS
    )
    mesh = mesh_of((2, 2, 2))
    table = sharding.table(abstract_state(cfg).params, abstract(cfg.mesh, 8), cfg.parallel, cfg.mesh.rules)
    state = first_state(jax.random.key(0), cfg.model, cfg.training, **vocabulary_sizes(cfg))
    params = jax.device_put(state.params, sharding.shardings(state.params, mesh, rules=cfg.mesh.rules))
    leaves = {path_of(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params)}
    assert sum(row.number for row in table) == len(leaves)
    assert sum(row.bytes_here for row in table) == sum(x.addressable_shards[0].data.nbytes for x in leaves.values())
    assert sum(row.bytes_whole for row in table) == sum(x.nbytes for x in leaves.values())
    found = {row.name: row for row in table}
    assert found["encoder/embedding/table"].rule == "mesh.rules[0]"
    assert found["decoder/embedding/table"].rule == "embedding/table"
    assert found["encoder/blocks/0-2/conv/w/v"][1:4] == (3, (3, 16, 32), ((), ("fsdp",), ("tensor",)))
    assert found["encoder/blocks/3/conv/b"].number == 1
    assert found["decoder/blocks/*/conv/w/v"].number == 2
    text = table_of(cfg, 8)
    assert "8 devices as data 2, fsdp 2, tensor 2; jit" in text
    assert "encoder/blocks/0-2/conv/w/v" in text
    assert f"{sharding.size_text(sum(row.bytes_here for row in table))} per device of" in text
    one_line = sharding.summary(table)
    assert "; conv/w [-, fsdp, tensor]: 6; " in one_line
    assert "mesh.rules[0] [-, tensor+fsdp]: 1; " in one_line


def test_pmap_holds_everything():
    cfg = tiny.config(mesh__data=8, parallel="pmap")
    table = sharding.table(abstract_state(cfg).params, abstract(cfg.mesh, 8), cfg.parallel)
    assert all(row.bytes_here == row.bytes_whole for row in table)


def test_the_table_wants_a_number_of_devices_that_fits():
    with pytest.raises(UserError, match=r"^mesh: data 1 \* fsdp 1 \* tensor 16 is 16 devices, but there are only 8"):
        table_of(tiny.config(mesh__tensor=16), 8)


@pytest.mark.drill
def test_rules_may_change_when_a_run_continues(tmp_path):
    """The log has the table in a line, and the parameters are those of a run without rules."""
    mesh = {"mesh__data": 2, "mesh__tensor": 2, "training__max_steps": 2}
    for folder in ("a", "b"):
        train(tiny.config(**mesh), tmp_path / folder)
    more = {**mesh, "training__max_steps": 4}
    train(tiny.config(**more), tmp_path / "a")
    rules = [("encoder/embedding/table", (None, "data+tensor")), ("conv/w", (None, "tensor", None))]
    train(tiny.config(**more, mesh__rules=rules), tmp_path / "b")
    ours, theirs = (tiny.arrays(tmp_path / folder, 4) for folder in ("b", "a"))
    assert_equal_each(ours, theirs)
    log = (tmp_path / "b" / "train.log").read_text()
    assert "embedding/table [tensor, data]: 2; " in log
    assert "mesh.rules[0] [-, tensor+data]: 1; " in log
