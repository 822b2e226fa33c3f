"""A trace of a few updates by JAX's profiler (`training.profile`)."""

from pathlib import Path
from typing import Any

import jax

from convs2s_jax.core.errors import Tell
from convs2s_jax.nn.types import Tree
from convs2s_jax.training.run.config import Traced
from convs2s_jax.training.run.reports.wall_clock import WallClock

FOLDER = "profile"
"""Folder in the workdir. TensorBoard's profile plugin and xprof read it."""


class Profile:
    """Context manager that traces the requested updates on the devices of this process."""

    def __init__(self, asked: Traced | None, folder: Path, *, step: int, tell: Tell, clock: WallClock) -> None:
        """Begin after `step` updates.

        Args:
          asked: the updates; None for none.
          folder: where the trace goes.
          step: updates done before.
          tell: is called with sentences for the user.
          clock: of the run; starting and ending a trace does not count as "compute".
        """
        self._asked, self._folder, self._tell, self._active, self._step = asked, folder, tell, False, step
        self._clock = clock
        if asked and step >= asked.first:
            tell(f"training.profile begins at step {asked.first}, which has already passed: nothing is traced")

    def __enter__(self) -> "Profile":
        return self

    def done(self, step: int, results: Tree) -> None:
        """Note that `step` updates are done. The last one's results are awaited if the trace begins or ends here."""
        self._step = step
        if self._asked and not self._active and step == self._asked.first - 1:
            jax.block_until_ready(results)
            with self._clock.during("other"):
                jax.profiler.start_trace(self._folder)
            self._active = True
        elif self._asked and self._active and step == self._asked.first + self._asked.steps - 1:
            jax.block_until_ready(results)
            self._stop()

    def __exit__(self, *_: Any) -> None:
        if self._active:  # the run ends within the trace
            self._stop()
        elif self._asked and self._step < self._asked.first - 1:
            self._tell(f"training.profile begins at step {self._asked.first}, which was not reached: nothing is traced")

    def _stop(self) -> None:
        self._active = False
        with self._clock.during("other"):
            jax.profiler.stop_trace()
        self._tell(f"the trace of training.profile is in {self._folder}")
