"""What a run measures: where its time goes, sums of updates, memory, arithmetic, and traces of updates."""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import jax
import numpy as np
from jax.sharding import Mesh

from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.nn.types import Tree
from convs2s_jax.training.step import StepSums

Activity = Literal["compute", "input", "validation", "checkpoint", "compile", "other"]
"""What the host does, or waits for.

compute: updates. The host waits for the device, or prepares its next update; either way the device is working.
input: updates wait for batches, and the order of an epoch is planned.
validation: losses and scores, also of the test set, including compilation of programs that only they need.
checkpoint: the part of a save that blocks the host; the rest is written while updates continue.
compile: updates of new shapes, with their first results.
other: the start (reading data, restoring a checkpoint), reports and trackers, traces, and the end.
"""
ACTIVITIES: tuple[Activity, ...] = get_args(Activity)


class WallClock:
    """Measures the time by activity."""

    def __init__(self) -> None:
        """Start now, with "other"."""
        self._now: Activity = "other"
        self._since = time.perf_counter()
        self._spent = dict.fromkeys(ACTIVITIES, 0.0)
        self._taken = dict.fromkeys(ACTIVITIES, 0.0)

    @contextlib.contextmanager
    def during(self, activity: Activity) -> Iterator[None]:
        """Count the time inside towards this activity; nested activities count separately."""
        outer = self._switch(activity)
        try:
            yield
        finally:
            self._switch(outer)

    def take(self) -> dict[Activity, float]:
        """Seconds since the last call, or since the beginning."""
        self._switch(self._now)
        spent = {name: self._spent[name] - self._taken[name] for name in ACTIVITIES}
        self._taken = dict(self._spent)
        return spent

    def account(self) -> str:
        """A sentence for the user: the time since the beginning, and the share of each activity."""
        self._switch(self._now)
        total = sum(self._spent.values())
        parts = ", ".join(f"{name} {100 * part / total:.1f} %" for name, part in self._spent.items())
        return f"{total:.1f} s, of which {parts}"

    def _switch(self, activity: Activity) -> Activity:
        """Count the time up to now, and continue with `activity`; return the one before."""
        now = time.perf_counter()
        self._spent[self._now] += now - self._since
        before, self._now, self._since = self._now, activity, now
        return before


BEHIND = 2
"""Updates the host may run ahead of the device. A loss that is not finite is noticed this many updates late."""


class Window:
    """Collects the sums of updates on the device and fetches them later, several at once.

    Attributes:
      peak: floating-point operations per second that the devices can do; None if unknown.
      skipped: number of updates in a row, up to the last report, that were skipped.
    """

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
        self._clock, self.peak, self.skipped = clock, peak, skipped
        self._pending: list[tuple[int, float, StepSums, bool]] = []
        self._seen: set[tuple[bool, tuple[int, ...]]] = set()
        self._compiles = False
        self._empty()

    def _empty(self) -> None:
        self._nll = self._norms = self._flops = 0.0
        self._rate = math.nan
        self._tokens = self._timed_tokens = self._good = self._timed = self._bad = 0

    @contextlib.contextmanager
    def update_of(self, shapes: Iterable[tuple[int, ...]]) -> Iterator[None]:
        """Enclose the call of an update on batches of these shapes; one that compiles does not count as "compute".

        Earlier updates are awaited first, so that the device does not work on them meanwhile. The first batch of an
        update has another program than the following ones.
        """
        new = {(i > 0, shape) for i, shape in enumerate(shapes)} - self._seen
        self._seen |= new
        self._compiles = bool(new)
        if new:
            self._fetch(keep=0)
        with self._clock.during("compile") if new else contextlib.nullcontext():
            yield

    def add(self, step: int, rate: float, sums: StepSums, flops: float = 0.0) -> None:
        """Add one update, and check the one that is `BEHIND` updates older.

        Args:
          step: its number, from 1.
          rate: its learning rate.
          sums: its loss and gradient norm, on the device.
          flops: floating-point operations of its products.

        Raises:
          UserError: the loss or the gradient of that one was not finite, and no more updates may be skipped.
        """
        self._pending.append((step, rate, sums, not self._compiles))
        if self._compiles:
            with self._clock.during("compile"):
                self._fetch(keep=0)
        else:
            self._flops += flops
            self._fetch(keep=BEHIND)
        self._compiles = False

    def close(self) -> dict[str, float]:
        """Return the metrics since the last report and start over.

        Means are over updates that were not skipped, and speeds over those that did not compile. Raises as `add`.
        """
        self._fetch(keep=0)
        spent = self._clock.take()
        seconds = spent["compute"] + spent["input"]
        metrics = {
            "loss": self._nll / self._tokens if self._tokens else math.nan,
            "learning_rate": self._rate,
            "grad_norm": self._norms / self._good if self._good else math.nan,
        }
        if self._timed and seconds > 0:
            metrics |= {"tokens_per_second": self._timed_tokens / seconds, "step_seconds": seconds / self._timed}
            if self.peak and self._flops:
                metrics["mfu"] = self._flops / seconds / self.peak
        total = sum(spent.values()) or 1.0
        metrics |= {f"{name}_share": part / total for name, part in spent.items()}
        if self._skip:
            metrics["skipped"] = self._bad
        self._empty()
        return metrics

    def _fetch(self, keep: int) -> None:
        """Fetch all updates but the last `keep`, and check that they are finite."""
        count = max(0, len(self._pending) - keep)
        seen, self._pending = self._pending[:count], self._pending[count:]
        for step, rate, on_device, timed in seen:
            sums = jax.device_get(on_device)
            self._timed += timed
            if not (math.isfinite(sums.loss.loss) and math.isfinite(sums.grad_norm)):
                self._judge(step, rate, sums)
                continue
            self._nll += float(sums.loss.nll)
            self._norms += float(sums.grad_norm)
            self._tokens += int(sums.loss.tokens)
            self._timed_tokens += timed * int(sums.loss.tokens)
            self._rate = rate
            self._good += 1
            self.skipped = 0

    def _judge(self, step: int, rate: float, sums: StepSums) -> None:
        """Skip an update that is not finite, or raise UserError."""
        self._bad += 1
        self.skipped += 1
        bad = [name for name, good in zip(self._names, np.asarray(sums.finite), strict=True) if not good]
        where = f"; the gradient of {bad[0]} is the first that is not finite" if bad else ""
        what = (
            f"step {step}: the loss is {sums.loss.loss} and the gradient norm {sums.grad_norm} at learning rate "
            f"{rate:g}{where}"
        )
        if self.skipped <= self._skip:
            return self._tell(f"{what}; skipped, {self.skipped} in a row of at most {self._skip}")
        before = f" after {self._skip} skipped updates" if self._skip else ""
        raise UserError(f"{what}{before}. {self._remedy()}")


MEMORY = {"memory": "bytes_in_use", "memory_peak": "peak_bytes_in_use"}
"""Name of a metric -> name in the statistics of a device."""


def device_memory(devices: Iterable[Any]) -> dict[str, int]:
    """Return bytes in use now, and the peak since the start, each on the device of this process with the most.

    Args:
      devices: of this process, such as `jax.local_devices()`.

    Returns:
      Bytes by metric, without metrics that no device reports. CPUs report none.
    """
    found = [device.memory_stats() or {} for device in devices]
    reported = {name: [stats[field] for stats in found if field in stats] for name, field in MEMORY.items()}
    return {name: max(numbers) for name, numbers in reported.items() if numbers}


TERA = 1e12
PEAKS: Mapping[str, float] = MappingProxyType(
    {
        "TPU v2": 22.5 * TERA,  # a device is one of the two cores of a chip
        "TPU v3": 61.5 * TERA,  # as above
        "TPU v4": 275 * TERA,
        "TPU v5 lite": 197 * TERA,
        "TPU v5": 459 * TERA,
        "TPU v5p": 459 * TERA,
        "TPU v6 lite": 918 * TERA,
        "TPU7x": 1153.5 * TERA,  # a device is one of the two halves of a chip
        "Tesla T4": 65 * TERA,
        "Tesla V100-SXM2-16GB": 125 * TERA,
        "Tesla V100-SXM2-32GB": 125 * TERA,
        "NVIDIA A100-SXM4-40GB": 312 * TERA,
        "NVIDIA A100-SXM4-80GB": 312 * TERA,
        "NVIDIA A100 80GB PCIe": 312 * TERA,
        "NVIDIA L4": 121 * TERA,
        "NVIDIA H100 80GB HBM3": 989.4 * TERA,
        "NVIDIA H100 PCIe": 756 * TERA,
        "NVIDIA H200": 989.4 * TERA,
        "NVIDIA B200": 2250 * TERA,
    }
)
"""Operations per second of a device by its kind in JAX, in bfloat16 (T4, V100: float16), without sparsity.

`scaling.chips` has the other rates of some of them.

Sources: the pages of Google Cloud's documentation on each TPU version ("Peak compute per chip"), and NVIDIA's data
sheets, where numbers with sparsity are halved.
"""


def peak_flops(mesh: Mesh, given: float | None) -> float | None:
    """Operations per second of all devices of a mesh.

    Args:
      mesh: the devices.
      given: rate of one device; None for that of `PEAKS`.

    Returns:
      The rate; None if it is not given and the kind of device is not known, as for CPUs.
    """
    rate = given or PEAKS.get(mesh.devices.flat[0].device_kind)
    return rate and rate * mesh.devices.size


PROFILE = "profile"
"""Folder in the workdir. TensorBoard's profile plugin and xprof read it."""


class Profile:
    """Traces the requested updates on the devices of this process."""

    def __init__(self, asked: tuple[int, int] | None, folder: Path, *, tell: Tell, clock: WallClock) -> None:
        """Trace nothing yet.

        Args:
          asked: number of the first update, from 1, and how many; None for none.
          folder: where the trace goes.
          tell: is called with sentences for the user.
          clock: of the run; starting and ending a trace does not count as "compute".
        """
        self._asked, self._folder, self._tell, self._clock, self._active = asked, folder, tell, clock, False

    def done(self, step: int, results: Tree) -> None:
        """Note that `step` updates are done. The last one's results are awaited if the trace begins or ends here."""
        if self._asked is None:
            return
        first, steps = self._asked
        if self._active and step == first + steps - 1:
            jax.block_until_ready(results)
            self.close()
        elif step == first - 1:
            jax.block_until_ready(results)
            with self._clock.during("other"):
                jax.profiler.start_trace(self._folder)
            self._active = True

    def close(self) -> None:
        """End a trace that is not complete. Report updates that this start did not do."""
        if self._active:
            with self._clock.during("other"):
                jax.profiler.stop_trace()
            self._tell(f"the trace of training.profile is in {self._folder}")
        elif self._asked:
            self._tell(
                f"training.profile begins at step {self._asked[0]}, which this start did not do: nothing is traced"
            )
        self._asked, self._active = None, False
