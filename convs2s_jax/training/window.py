"""What happened since the last report."""

import math
import time

import jax

from convs2s_jax.core.errors import UserError
from convs2s_jax.training.step import StepSums

BEHIND = 2
"""Updates the host may run ahead of the device."""


class Window:
    """Collects the sums of updates on the device and fetches them together."""

    def __init__(self) -> None:
        self._updates: list[tuple[int, float, StepSums]] = []
        self._waited = 0.0
        self._since = time.perf_counter()

    def restart(self) -> None:
        """Begin to measure time here: what passed since the last report was no training."""
        self._since, self._waited = time.perf_counter(), 0.0

    def wait(self, seconds: float) -> None:
        """Note time spent waiting for input."""
        self._waited += seconds

    def add(self, step: int, rate: float, sums: StepSums) -> None:
        """Note one update."""
        self._updates.append((step, rate, sums))
        if len(self._updates) > BEHIND:
            jax.block_until_ready(self._updates[-1 - BEHIND][2].grad_norm)

    def close(self, last_good: str) -> dict[str, float]:
        """Metrics since the last report, and begin the next.

        Args:
          last_good: says which checkpoint is good, for the message.

        Raises:
          UserError: names the first step whose loss or gradient was not finite.
        """
        fetched = jax.device_get([sums for _, _, sums in self._updates])
        for (step, rate, _), sums in zip(self._updates, fetched, strict=True):
            loss, norm = float(sums.loss.loss), float(sums.grad_norm)
            if not (math.isfinite(loss) and math.isfinite(norm)):
                raise UserError(
                    f"step {step}: the loss is {loss} and the gradient norm {norm} at learning rate {rate:g}; "
                    f"{last_good}. Use a lower learning rate or clip"
                )
        tokens = sum(int(s.loss.tokens) for s in fetched)
        seconds = time.perf_counter() - self._since
        metrics = {
            "loss": sum(float(s.loss.nll) for s in fetched) / tokens,
            "learning_rate": self._updates[-1][1],
            "grad_norm": sum(float(s.grad_norm) for s in fetched) / len(fetched),
            "tokens_per_second": tokens / seconds,
            "input_wait": self._waited,
        }
        self._updates = []
        self.restart()
        return metrics
