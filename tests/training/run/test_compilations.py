"""A counter of compilations."""

import jax
import jax.numpy as jnp

from convs2s_jax.training.run.compilations import CompileCounter


def test_each_new_shape_counts_once():
    double = jax.jit(lambda x: 2.0 * x)
    arrays = [jnp.zeros(n) for n in (3, 3, 4, 3, 4, 5)]  # made before: they compile too
    with CompileCounter() as counter:
        counts = []
        for x in arrays:
            double(x).block_until_ready()
            counts.append(counter.count)
        assert counts == [1, 1, 2, 2, 2, 3]


def test_programs_that_are_read_from_the_folder_of_kept_ones_are_known():
    """JAX's own events, in its order (tests/commands/test_kept_programs.py has a whole run)."""
    with CompileCounter() as counter:
        jax.monitoring.record_event("/jax/compilation_cache/cache_hits")
        jax.monitoring.record_event_duration_secs("/jax/core/compile/backend_compile_duration", 0.5)
        jax.monitoring.record_event_duration_secs("/jax/core/compile/backend_compile_duration", 0.5)
    assert (counter.count, counter.kept) == (2, 1)


def test_nothing_is_counted_outside():
    triple = jax.jit(lambda x: 3.0 * x)
    x, y = jnp.zeros(6), jnp.zeros(7)
    with CompileCounter() as counter:
        triple(x)
    triple(y)
    assert counter.count == 1


def test_counters_count_apart():
    x, y = jnp.zeros(8), jnp.zeros(9)
    quadruple = jax.jit(lambda x: 4.0 * x)
    with CompileCounter() as outer:
        quadruple(x)
        with CompileCounter() as inner:
            quadruple(y)
    assert (outer.count, inner.count) == (2, 1)
