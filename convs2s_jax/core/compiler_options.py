"""Options of XLA's CPU compiler for single programs: `jax.jit` takes them only where it is not within another program.

What each of them gains is in docs/performance-log.md ("Compile time").
"""

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax

LITTLE_OPTIMISATION: Mapping[str, Any] = {"xla_backend_optimization_level": 1}
"""For programs that run once. Level 0 takes less still, but rounds otherwise and runs five times as long."""


def quick(version: str = jax.__version__) -> dict[str, Any]:
    """For programs that run often and have many small parts, as a search: they run as fast and compile in less time.

    Args:
      version: of JAX. In that of 0.10, the older way to emit fusions takes less time; 0.12.0.1 has no such option.
    """
    older = {"xla_cpu_use_fusion_emitters": False} if version.startswith("0.10.") else {}
    return {**LITTLE_OPTIMISATION, **older}


def unless_set(options: Mapping[str, Any], flags: str | None = None) -> dict[str, Any]:
    """The options that are not in XLA_FLAGS, by default the process's: what a user sets there has priority."""
    given = os.environ.get("XLA_FLAGS", "") if flags is None else flags
    known = {word.lstrip("-").partition("=")[0] for word in given.split()}
    return {name: value for name, value in options.items() if name not in known}


class OnCpu:
    """A program in two forms: one with compiler options, for calls on CPU, and one for all others.

    JAX takes compiler options at the outermost `jax.jit` only. Within another transformation the program is traced
    without them.
    """

    def __init__(
        self,
        other: Callable[..., Any],
        on_cpu: Callable[..., Any],
        is_cpu: Callable[[], bool] = lambda: jax.default_backend() == "cpu",
    ) -> None:
        """Choose between two results of `jax.jit` at each call; attributes, such as `lower`, are those of one of them.

        Args:
          other: without options.
          on_cpu: the same function, with options.
          is_cpu: whether a call that is not traced runs on CPU. It may start JAX's backends, so it is not called here.
        """
        self._other, self._on_cpu, self._is_cpu = other, on_cpu, is_cpu
        functools.update_wrapper(self, on_cpu)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The results of the program."""
        # under `jit` any operation gives a tracer; under `vmap` or `grad` only those on their arguments do
        leaves = [jax.lax.add(0, 0), *jax.tree.leaves((args, kwargs))]
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
        return (self._other if traced or not self._is_cpu() else self._on_cpu)(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._on_cpu if self._is_cpu() else self._other, name)


def jit_quickly(**options: Any) -> Callable[[Callable[..., Any]], OnCpu]:
    """Decorator: `jax.jit` with `quick()` on CPU. `options` are those of `jax.jit`. XLA_FLAGS are read here."""

    def compiled(function: Callable[..., Any]) -> OnCpu:
        return OnCpu(jax.jit(function, **options), jax.jit(function, compiler_options=unless_set(quick()), **options))

    return compiled
