"""When a checkpoint is due by the clock (`training.save_every_minutes`)."""

import time

from convs2s_jax.training.run.processes import distributed


class SaveClock:
    """Measures the time since the last checkpoint. The clock of process 0 decides for all processes."""

    def __init__(self, minutes: float) -> None:
        """Start the clock.

        Args:
          minutes: between two checkpoints; 0 for none by the clock.
        """
        self._seconds = 60 * minutes
        self.restart()

    def restart(self) -> None:
        """Start over: a checkpoint has just been saved."""
        self._since = time.monotonic()

    def due(self) -> bool:
        """Whether the time has passed. All processes must ask at the same step; they get the answer of process 0."""
        if not self._seconds:
            return False
        return distributed.from_primary(time.monotonic() - self._since >= self._seconds)
