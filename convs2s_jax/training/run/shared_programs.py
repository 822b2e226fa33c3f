"""Programs that the runs of a process share: a second run of an equal configuration traces and compiles none again."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

KEPT = 4
"""Results that are kept for each function: the latest ones."""

_FUNCTIONS: list[Any] = []


def shared(make: F) -> F:
    """Decorator of a function that makes programs: calls with equal arguments, which are hashable, have one result.

    What the function and the program read besides their arguments must not change within a process; see `forget`.
    """
    kept: Any = functools.lru_cache(maxsize=KEPT)(make)
    _FUNCTIONS.append(kept)
    found: F = kept
    return found


def forget() -> None:
    """Let all of them go, so that the next run makes its own: after a change of code or of JAX's settings.

    It also frees the memory of devices that programs take.
    """
    for kept in _FUNCTIONS:
        kept.cache_clear()
