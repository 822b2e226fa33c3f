"""A counter of compilations."""

import jax
import jax.numpy as jnp

from convs2s_jax.training.run.compilations import CompileCounter


def test_programs_that_are_read_from_the_folder_of_kept_ones_are_known():
    """JAX's own events, in its order (tests/commands/test_kept_programs.py has a whole run)."""
    with CompileCounter() as counter:
        jax.monitoring.record_event("/jax/compilation_cache/cache_hits")
        jax.monitoring.record_event_duration_secs("/jax/core/compile/backend_compile_duration", 0.5)
        jax.monitoring.record_event_duration_secs("/jax/core/compile/backend_compile_duration", 0.5)
    assert (counter.count, counter.kept) == (2, 1)


def test_counters_count_apart_and_only_inside():
    x, y, z = jnp.zeros(8), jnp.zeros(9), jnp.zeros(7)
    quadruple = jax.jit(lambda x: 4.0 * x)
    with CompileCounter() as outer:
        quadruple(x)
        with CompileCounter() as inner:
            quadruple(y)
    quadruple(z)
    assert (outer.count, inner.count) == (2, 1)
