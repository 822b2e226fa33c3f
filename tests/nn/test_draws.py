"""Draws of a whole model in one loop: the numbers that `jax.random` gives each of them alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from convs2s_jax.nn import draws, recurrent
from convs2s_jax.nn.draws import CHUNK, BatchedInit, NestedDrawError
from convs2s_jax.training.run.compilations import CompileCounter


def init(key):
    """Both kinds, of less and of more than a chunk; an array without a draw, and a draw by another function."""
    keys = jax.random.split(key, 6)
    return {
        "small": 0.5 * draws.normal(keys[0], (3, 7)),
        "whole": draws.normal(keys[1], (2, CHUNK)),
        "more": draws.uniform(keys[2], (CHUNK + 5,), 0.3),
        "one": draws.uniform(keys[3], (), 2.0),
        "zeros": jnp.zeros(4),
        "other": jax.random.bernoulli(keys[4], 0.5, (9,)),
        "last": draws.normal(jax.random.fold_in(keys[5], 3), (5,)),
    }


def expected(key):
    keys = jax.random.split(key, 6)
    return {
        "small": 0.5 * jax.random.normal(keys[0], (3, 7)),
        "whole": jax.random.normal(keys[1], (2, CHUNK)),
        "more": jax.random.uniform(keys[2], (CHUNK + 5,), minval=-0.3, maxval=0.3),
        "one": jax.random.uniform(keys[3], (), minval=-2.0, maxval=2.0),
        "zeros": jnp.zeros(4),
        "other": jax.random.bernoulli(keys[4], 0.5, (9,)),
        "last": jax.random.normal(jax.random.fold_in(keys[5], 3), (5,)),
    }


def assert_same(one, other):
    for name, values in other.items():
        np.testing.assert_array_equal(one[name], values, err_msg=name)


def test_each_draw_is_that_of_its_key():
    key, batched = jax.random.key(5), BatchedInit(init)
    keys = jax.jit(batched.keys)(key)
    assert keys.shape == (5, 2)
    assert_same(jax.jit(batched.parameters)(key, keys), jax.jit(expected)(key))
    assert_same(jax.jit(init)(key), jax.jit(expected)(key))


def test_the_keys_decide():
    key, batched = jax.random.key(5), BatchedInit(init)
    other = jax.jit(batched.parameters)(key, jax.jit(batched.keys)(jax.random.key(6)))
    assert not np.array_equal(other["small"], expected(key)["small"])
    np.testing.assert_array_equal(other["other"], expected(key)["other"])


def test_an_initialiser_may_draw_nothing():
    batched = BatchedInit(lambda _key: {"b": jnp.zeros(3)})
    keys = batched.keys(jax.random.key(0))
    assert keys.shape == (0, 2)
    np.testing.assert_array_equal(batched.parameters(jax.random.key(0), keys)["b"], np.zeros(3))


def test_an_error_leaves_draws_separate_again():
    def fails(_key):
        assert draws.batched()
        raise RuntimeError("within")

    with pytest.raises(RuntimeError, match=r"^within"):
        BatchedInit(fails)
    assert not draws.batched()


@pytest.mark.parametrize(
    "within",
    [lambda f: lambda keys: jax.jit(f)(keys[0]), jax.vmap, lambda f: lambda keys: jax.lax.map(f, keys)],
    ids=["jit", "vmap", "scan"],
)
def test_nested_draws_are_separate(within):
    """JAX traces what is within once: its draws would be noted then, and not when they are asked for."""

    def nested(key):
        keys = jax.random.split(key, 3)
        return draws.normal(key, (3,)), within(lambda key: draws.normal(key, (2,)))(keys)

    with pytest.raises(NestedDrawError, match=r"^an initialiser samples within jit, vmap or scan"):
        BatchedInit(nested)
    assert not draws.batched()
    key = jax.random.key(3)
    for one, other in zip(draws.initialise(nested, key), jax.jit(nested)(key), strict=True):
        np.testing.assert_array_equal(one, other)


def test_draws_that_differ_each_time_are_refused():
    sizes = iter((2, 3, 4))
    batched, key = BatchedInit(lambda key: draws.normal(key, (next(sizes),))), jax.random.key(0)
    with pytest.raises(ValueError, match=r"^an initialiser makes different draws each time"):
        batched.keys(key)
    with pytest.raises(ValueError, match=r"^an initialiser makes different draws each time"):
        batched.parameters(key, jnp.zeros((1, 2), jnp.uint32))


def sized(key, size):
    one, other = jax.random.split(key)
    w = draws.normal(one, (size, 2)) / jnp.sqrt(size)
    return {"w": w, "g": jnp.sum(w * w, axis=0), "u": draws.uniform(other, (size,), 0.5), "b": jnp.zeros(size)}


def test_an_initialiser_is_compiled_as_a_whole_and_once_for_its_arguments():
    key = jax.random.key(5)
    whole = jax.jit(sized, static_argnums=1)(key, 6)
    with CompileCounter() as programs:
        made = draws.initialise(sized, key, 6)
    assert programs.count <= 3  # two, and the addition of `is_traced`; its operations one by one: 10
    assert_same(made, whole)
    with CompileCounter() as programs:
        other = draws.initialise(sized, jax.random.fold_in(key, 1), 6)
    assert programs.count <= 1
    assert not np.array_equal(other["w"], made["w"])
    assert draws.initialise(sized, key, 7)["w"].shape == (7, 2)


@pytest.fixture
def uncompiled(monkeypatch):
    monkeypatch.setattr(draws, "_programs", lambda *_: pytest.fail("compiled"))


def sizes_of(tree):
    return jax.tree.map(lambda leaf: (leaf.shape, str(leaf.dtype)), tree)


def test_within_a_program_or_transformation_an_initialiser_is_called_directly(uncompiled):
    key = jax.random.key(5)
    whole = jax.jit(sized, static_argnums=1)(key, 6)
    assert_same(jax.jit(lambda key: draws.initialise(sized, key, 6))(key), whole)
    assert_same(jax.jit(lambda: draws.initialise(sized, key, 6))(), whole)
    assert jax.vmap(lambda key: draws.initialise(sized, key, 6))(jax.random.split(key, 3))["w"].shape == (3, 6, 2)
    assert BatchedInit(lambda key: draws.initialise(sized, key, 6)).keys(key).shape == (2, 2)


def test_on_several_devices_and_with_other_generators_an_initialiser_is_called_directly(uncompiled):
    key, mesh = jax.random.key(5), Mesh(np.array(jax.devices()[:2]), ("a",))
    sizes = sizes_of(sized(key, 6))
    assert sizes_of(draws.initialise(sized, jax.random.key(5, impl="rbg"), 6)) == sizes
    assert sizes_of(draws.initialise(sized, jax.device_put(key, NamedSharding(mesh, PartitionSpec())), 6)) == sizes
    with jax.set_mesh(mesh):
        assert sizes_of(draws.initialise(sized, key, 6)) == sizes
    with jax.disable_jit():
        assert sizes_of(draws.initialise(sized, key, 6)) == sizes


def test_parameters_are_on_the_device_of_the_key():
    device = jax.devices()[2]
    for leaf in jax.tree.leaves(draws.initialise(sized, jax.device_put(jax.random.key(5), device), 6)):
        assert leaf.devices() == {device}


@pytest.mark.parametrize(
    ("name", "value"),
    [("jax_threefry_partitionable", False), ("jax_default_prng_impl", "rbg"), ("jax_enable_x64", True)],
    ids=str,
)
def test_other_settings_draw_one_by_one(name, value, uncompiled):
    assert draws.can_be_batched()
    before = getattr(jax.config, name)
    jax.config.update(name, value)
    try:
        assert not draws.can_be_batched()
        made = draws.initialise(sized, jax.random.key(5), 6)
        assert made["w"].dtype == (jnp.float64 if name == "jax_enable_x64" else jnp.float32)
    finally:
        jax.config.update(name, before)


def test_recurrent_kernels_are_the_orthogonal_ones_of_jax():
    key = jax.random.key(2)
    cell = recurrent.init(key, recurrent.CELLS["gru"], 5, 6)
    gates = jax.random.orthogonal(jax.random.split(key)[1], 6, (3,))
    np.testing.assert_array_equal(cell.state.w, jnp.concatenate(list(gates), axis=1))
