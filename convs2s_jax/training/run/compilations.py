"""A counter of XLA compilations, to show that each batch shape compiles only once."""

import jax

_EVENT = "/jax/core/compile/backend_compile_duration"


class CompileCounter:
    """Context manager that counts the compilations of this process.

    Attributes:
      count: number of compilations so far.
      seconds: time spent on them.
    """

    def __init__(self) -> None:
        self.count = 0
        self.seconds = 0.0

    def __enter__(self) -> "CompileCounter":
        jax.monitoring.register_event_duration_secs_listener(self._note)
        return self

    def __exit__(self, *_: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._note)

    def _note(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event == _EVENT:
            self.count += 1
            self.seconds += duration_secs
