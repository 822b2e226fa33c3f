"""Metrics of the updates since the last report."""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from convs2s_jax.core.errors import UserError
from convs2s_jax.training.step import StepSums

BEHIND = 2
"""Updates the host may run ahead of the device. A loss that is not finite is noticed this many updates late."""


class Update(NamedTuple):
    """One update.

    Attributes:
      step: its number, from 1.
      rate: its learning rate.
      sums: its loss and gradient norm, on the device.
    """

    step: int
    rate: float
    sums: StepSums


class Window:
    """Collects the sums of updates on the device and fetches them later, several at once."""

    def __init__(
        self,
        *,
        names: Sequence[str],
        skip: int,
        last_good: Callable[[], str],
        tell: Callable[[str], None],
        skipped: int = 0,
    ) -> None:
        """Begin an empty window.

        Args:
          names: paths of the parameters, in the order of `StepSums.finite`.
          skip: most updates in a row that may be skipped because their loss or gradient is not finite; 0 for none. The
            update itself has left the parameters unchanged.
          last_good: returns which checkpoint is good, for the error message.
          tell: is called with a sentence for each skipped update.
          skipped: updates in a row that were skipped just before, when the run is continued.
        """
        self._names, self._skip, self._last_good, self._tell = names, skip, last_good, tell
        self._pending: list[Update] = []
        self._compiled: set[tuple[int, ...]] = set()
        self._good: list[Update] = []
        self._bad, self._in_a_row = 0, skipped
        self._waited = 0.0
        self._since = time.perf_counter()

    @property
    def skipped(self) -> int:
        """Number of updates in a row, up to the last report, that were skipped."""
        return self._in_a_row

    def restart(self) -> None:
        """Start the clock again: the time since the last report was not spent on training."""
        self._since, self._waited = time.perf_counter(), 0.0

    @contextlib.contextmanager
    def update_of(self, shapes: Iterable[tuple[int, ...]]) -> Iterator[None]:
        """Enclose the call of an update on batches of these shapes; a call that compiles is not timed.

        Earlier updates are awaited first, so that the device does not work on them while the clock is stopped.
        """
        new = set(shapes) - self._compiled
        if not new:
            yield
            return
        self._look(keep=0)
        since = time.perf_counter()
        yield
        self._since += time.perf_counter() - since
        self._compiled |= new

    def wait(self, seconds: float) -> None:
        """Note time spent waiting for input."""
        self._waited += seconds

    def add(self, step: int, rate: float, sums: StepSums) -> None:
        """Add one update, and check the one that is `BEHIND` updates older.

        Raises:
          UserError: the loss or the gradient of that one was not finite, and no more updates may be skipped.
        """
        self._pending.append(Update(step, rate, sums))
        self._look(keep=BEHIND)

    def close(self) -> dict[str, float]:
        """Return the metrics since the last report and begin anew. Means are over updates that were not skipped.

        Raises:
          UserError: as `add`.
        """
        self._look(keep=0)
        sums = [update.sums for update in self._good]
        tokens = sum(int(s.loss.tokens) for s in sums)
        seconds = time.perf_counter() - self._since
        metrics = {
            "loss": sum(float(s.loss.nll) for s in sums) / tokens if tokens else math.nan,
            "learning_rate": self._good[-1].rate if self._good else math.nan,
            "grad_norm": sum(float(s.grad_norm) for s in sums) / len(sums) if sums else math.nan,
            "tokens_per_second": tokens / seconds,
            "input_wait": self._waited,
        }
        if self._skip:
            metrics["skipped"] = self._bad
        self._good, self._bad = [], 0
        self.restart()
        return metrics

    def _look(self, keep: int) -> None:
        """Fetch all updates but the last `keep`, and check that they are finite."""
        seen, self._pending = self._pending[: len(self._pending) - keep], self._pending[len(self._pending) - keep :]
        for update in seen:
            fetched = update._replace(sums=jax.device_get(update.sums))
            if math.isfinite(fetched.sums.loss.loss) and math.isfinite(fetched.sums.grad_norm):
                self._good.append(fetched)
                self._in_a_row = 0
            else:
                self._judge(fetched)

    def _judge(self, bad: Update) -> None:
        self._bad += 1
        self._in_a_row += 1
        finite = np.asarray(bad.sums.finite)
        names = [name for name, good in zip(self._names, finite, strict=True) if not good]
        where = f"; the gradient of {names[0]} is the first that is not finite" if names else ""
        what = (
            f"step {bad.step}: the loss is {bad.sums.loss.loss} and the gradient norm {bad.sums.grad_norm} "
            f"at learning rate {bad.rate:g}{where}"
        )
        if self._in_a_row <= self._skip:
            return self._tell(f"{what}; skipped, {self._in_a_row} in a row of at most {self._skip}")
        before = f" after {self._skip} that were skipped" if self._skip else ""
        raise UserError(f"{what}{before}; {self._last_good()}. Use a lower learning rate or clip")
