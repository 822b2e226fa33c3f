"""A counter of XLA compilations, to show that each batch shape compiles only once.

JAX also times a program that it reads from its compilation cache as a compilation, and reports that in another event.
"""

import jax

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
