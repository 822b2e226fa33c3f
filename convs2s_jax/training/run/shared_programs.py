"""Programs that the runs of a process share: a second run with an equal configuration retraces and compiles nothing."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

KEPT = 4
"""Number of results that are kept for each function: the latest ones."""

_FUNCTIONS: list[Any] = []


def shared(make: F) -> F:
    """Decorate a function that builds programs: calls with equal, hashable arguments share one result.

    Anything else that the function and the program read must not change within a process; see `forget`.
    """
    kept: Any = functools.lru_cache(maxsize=KEPT)(make)
    _FUNCTIONS.append(kept)
    found: F = kept
    return found


def forget() -> None:
    """Drop all shared programs, so that the next run builds its own: after a change of code or of JAX's settings.

    This also frees the device memory that the programs use.
    """
    for kept in _FUNCTIONS:
        kept.cache_clear()
