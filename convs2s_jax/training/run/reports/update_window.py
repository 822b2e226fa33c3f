"""Metrics of the updates since the last report."""

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np

from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.training.run.reports.wall_clock import WallClock
from convs2s_jax.training.step import StepSums

BEHIND = 2
"""Updates the host may run ahead of the device. A loss that is not finite is noticed this many updates late."""


class Update(NamedTuple):
    """One update.

    Attributes:
      step: its number, from 1.
      rate: its learning rate.
      sums: its loss and gradient norm, on the device.
      flops: floating-point operations of its products.
      compiled: whether a program was compiled for it; its tokens and time are then excluded from speeds.
    """

    step: int
    rate: float
    sums: StepSums
    flops: float
    compiled: bool


class Window:
    """Collects the sums of updates on the device and fetches them later, several at once."""

    def __init__(
        self,
        *,
        names: Sequence[str],
        skip: int,
        remedy: Callable[[], str],
        tell: Tell,
        clock: WallClock,
        peak: float | None = None,
        skipped: int = 0,
    ) -> None:
        """Start an empty window.

        Args:
          names: paths of the parameters, in the order of `StepSums.finite`.
          skip: maximum number of updates in a row that may be skipped because their loss or gradient is not finite; 0
            for none. The update itself has left the parameters unchanged.
          remedy: returns what to do after a loss that is not finite, a sentence without its full stop.
          tell: called with a sentence for each skipped update.
          clock: of the run; updates are its "compute".
          peak: floating-point operations per second that the devices can do; None if unknown.
          skipped: updates in a row that were skipped just before, when the run is continued.
        """
        self._names, self._skip, self._remedy, self._tell = names, skip, remedy, tell
        self._clock, self._peak = clock, peak
        self._pending: list[Update] = []
        self._known: set[tuple[bool, tuple[int, ...]]] = set()
        self._compiles = False
        self._good: list[Update] = []
        self._done: list[Update] = []
        self._bad, self._in_a_row = 0, skipped

    @property
    def skipped(self) -> int:
        """Number of updates in a row, up to the last report, that were skipped."""
        return self._in_a_row

    @contextlib.contextmanager
    def update_of(self, shapes: Iterable[tuple[int, ...]]) -> Iterator[None]:
        """Enclose the call of an update on batches of these shapes; one that compiles does not count as "compute".

        Earlier updates are awaited first, so that the device does not work on them meanwhile. The first batch of an
        update has another program than the following ones.
        """
        new = {(i > 0, shape) for i, shape in enumerate(shapes)} - self._known
        self._known |= new
        self._compiles = bool(new)
        if not new:
            yield
            return
        self._look(keep=0)
        with self._clock.during("compile"):
            yield

    def add(self, step: int, rate: float, sums: StepSums, flops: float = 0.0) -> None:
        """Add one update, and check the one that is `BEHIND` updates older.

        Raises:
          UserError: the loss or the gradient of that one was not finite, and no more updates may be skipped.
        """
        self._pending.append(Update(step, rate, sums, flops, self._compiles))
        if not self._compiles:
            return self._look(keep=BEHIND)
        self._compiles = False
        with self._clock.during("compile"):
            self._look(keep=0)

    def close(self) -> dict[str, float]:
        """Return the metrics since the last report and start over. Means are over updates that were not skipped.

        Raises:
          UserError: as `add`.
        """
        self._look(keep=0)
        sums = [update.sums for update in self._good]
        tokens = sum(int(s.loss.tokens) for s in sums)
        metrics = {
            "loss": sum(float(s.loss.nll) for s in sums) / tokens if tokens else math.nan,
            "learning_rate": self._good[-1].rate if self._good else math.nan,
            "grad_norm": sum(float(s.grad_norm) for s in sums) / len(sums) if sums else math.nan,
        }
        metrics |= self._speed()
        if self._skip:
            metrics["skipped"] = self._bad
        self._good, self._done, self._bad = [], [], 0
        return metrics

    def _speed(self) -> dict[str, float]:
        """Metrics of time since the last report."""
        spent = self._clock.take()
        seconds, timed = spent["compute"] + spent["input"], [update for update in self._done if not update.compiled]
        metrics = {}
        if timed and seconds > 0:
            tokens = sum(int(update.sums.loss.tokens) for update in self._good if not update.compiled)
            metrics["tokens_per_second"] = tokens / seconds
            metrics["step_seconds"] = seconds / len(timed)
            if self._peak:
                metrics["mfu"] = sum(update.flops for update in timed) / seconds / self._peak
        metrics["input_wait"] = spent["input"]
        total = sum(spent.values()) or 1.0
        return metrics | {f"{name}_share": part / total for name, part in spent.items()}

    def _look(self, keep: int) -> None:
        """Fetch all updates but the last `keep`, and check that they are finite."""
        seen, self._pending = self._pending[: len(self._pending) - keep], self._pending[len(self._pending) - keep :]
        for update in seen:
            fetched = update._replace(sums=jax.device_get(update.sums))
            self._done.append(fetched)
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
        before = f" after {self._skip} skipped updates" if self._skip else ""
        raise UserError(f"{what}{before}. {self._remedy()}")
