import jax
import jax.numpy as jnp
import numpy as np
import pytest

from convs2s_jax.core.compiler_options import LITTLE_OPTIMISATION, OnCpu, fast_compile_options, unless_set

X = jnp.linspace(-2.0, 2.0, 12).reshape(3, 4)


def mean_gate(x, power):
    """A few of the operations of a search: sigmoids, a product, a power, a sort."""
    return jnp.sort((jax.nn.sigmoid(x) @ x.T) ** power, axis=-1).sum(axis=0)


@pytest.mark.parametrize("options", [LITTLE_OPTIMISATION, fast_compile_options()], ids=["little", "quick"])
def test_this_jax_takes_the_options_and_the_numbers_stay(options):
    """A jax that refuses one of them says "No such compile option": `fast_compile_options` leaves it out there."""
    found = jax.jit(mean_gate, static_argnums=1, compiler_options=dict(options))(X, 2)
    np.testing.assert_allclose(found, mean_gate(X, 2), rtol=1e-6)


def test_the_older_emitter_is_for_one_version_only():
    assert "xla_cpu_use_fusion_emitters" in fast_compile_options("0.10.2")
    assert fast_compile_options("0.12.0") == dict(LITTLE_OPTIMISATION) == fast_compile_options("0.100.0")


def test_flags_of_the_user_have_priority():
    options = {"xla_a": 1, "xla_b": False}
    assert unless_set(options, "--xla_b=true --xla_ab=2 --other") == {"xla_a": 1}
    assert unless_set(options, "") == options


def test_the_form_with_options_is_for_calls_on_cpu_that_are_not_traced():
    calls = []
    other, on_cpu = (lambda x, name=name: calls.append(name) or x + 1 for name in ("other", "on_cpu"))
    program = OnCpu(other, on_cpu, is_cpu=lambda: True)
    program(X)
    jax.jit(program)(X)
    jax.jit(lambda: program(X))()
    jax.vmap(program)(X)
    jax.grad(lambda x: program(x)[0, 0])(X)
    OnCpu(other, on_cpu, is_cpu=lambda: False)(X)
    assert calls == ["on_cpu", "other", "other", "other", "other", "other"]
