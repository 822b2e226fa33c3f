"""Programs that the runs of a process share, and a counter of XLA compilations."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax

F = TypeVar("F", bound=Callable[..., Any])

_FUNCTIONS: list[Any] = []


def shared(make: F) -> F:
    """Decorate a function that builds programs: calls with equal, hashable arguments share one of the last 4 results.

    Anything else that the function and the program read must not change within a process; see `forget`.
    """
    kept: Any = functools.lru_cache(maxsize=4)(make)
    _FUNCTIONS.append(kept)
    found: F = kept
    return found


def forget() -> None:
    """Drop all shared programs, so that the next run builds its own: after a change of code or of JAX's settings.

    This also frees the device memory that the programs use.
    """
    for kept in _FUNCTIONS:
        kept.cache_clear()


_EVENT = "/jax/core/compile/backend_compile_duration"
_KEPT = "/jax/compilation_cache/cache_hits"


class CompileCounter:
    """Context manager that counts the compilations of this process.

    Attributes:
      count: number of programs so far that were compiled, or read from the cache.
      kept: how many of them were read from the cache.
    """

    def __init__(self) -> None:
        self.count = self.kept = 0

    def __enter__(self) -> "CompileCounter":
        jax.monitoring.register_event_duration_secs_listener(self._note)
        jax.monitoring.register_event_listener(self._note_kept)
        return self

    def __exit__(self, *_: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._note)
        jax.monitoring.unregister_event_listener(self._note_kept)

    def _note(self, event: str, duration_secs: float, **_: str | int) -> None:
        del duration_secs
        if event == _EVENT:
            self.count += 1

    def _note_kept(self, event: str, **_: str | int) -> None:
        if event == _KEPT:
            self.kept += 1
