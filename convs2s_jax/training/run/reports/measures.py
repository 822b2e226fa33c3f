"""What a run measures: where its time goes, sums of updates, memory, arithmetic, and traces of updates."""

import contextlib
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, get_args

import jax
import numpy as np
from jax.sharding import Mesh

from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.nn.types import Tree
from convs2s_jax.training import flops
from convs2s_jax.training.run.config import Traced
from convs2s_jax.training.run.programs import abstract_key, placed, places
from convs2s_jax.training.step import Batch, Loss, LossSums, Step, StepSums, gradients

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
        self._before = dict.fromkeys(ACTIVITIES, 0.0)

    @contextlib.contextmanager
    def during(self, activity: Activity) -> Iterator[None]:
        """Count the time inside towards this activity; nested activities count separately."""
        outer = self._switch(activity)
        try:
            yield
        finally:
            self._switch(outer)

    def reassign(self, activity: Activity, seconds: float) -> None:
        """Move the last seconds from the current activity to another one."""
        self._spent[activity] += seconds
        self._spent[self._now] -= seconds

    def take(self) -> dict[Activity, float]:
        """Seconds since the last call, or since the beginning."""
        self._switch(self._now)
        taken, self._spent = self._spent, dict.fromkeys(ACTIVITIES, 0.0)
        self._before = {name: self._before[name] + taken[name] for name in ACTIVITIES}
        return taken

    def account(self) -> str:
        """A sentence for the user: the time since the beginning, and the share of each activity."""
        self.take()
        total = sum(self._before.values())
        parts = ", ".join(f"{name} {100 * part / total:.1f} %" for name, part in self._before.items())
        return f"{total:.1f} s, of which {parts}"

    def _switch(self, activity: Activity) -> Activity:
        """Count the time up to now, and continue with `activity`; return the one before."""
        now = time.perf_counter()
        self._spent[self._now] += now - self._since
        before, self._now, self._since = self._now, activity, now
        return before


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
        "Tesla V100": 125 * TERA,
        "Tesla V100-PCIE": 112 * TERA,
        "NVIDIA A100-SXM4-40GB": 312 * TERA,
        "NVIDIA A100-SXM4-80GB": 312 * TERA,
        "NVIDIA A100-PCIE-40GB": 312 * TERA,
        "NVIDIA A100 80GB PCIe": 312 * TERA,
        "NVIDIA L4": 121 * TERA,
        "NVIDIA H100 80GB HBM3": 989.4 * TERA,
        "NVIDIA H100 PCIe": 756 * TERA,
        "NVIDIA H200": 989.4 * TERA,
        "NVIDIA B200": 2250 * TERA,
    }
)
"""Operations per second of a device by the prefix of its kind, in bfloat16 (T4, V100: float16), without sparsity.

`scaling.chips` has the other rates of some of them.

Sources: the pages of Google Cloud's documentation on each TPU version ("Peak compute per chip"), and NVIDIA's data
sheets, where numbers with sparsity are halved.
"""


FORMS = frozenset({"PCIE", "NVL", "MIG"})
"""Words in the kind of a GPU that is slower than the one without them: a card, or a part of a GPU."""


def known_kind(device_kind: str) -> str | None:
    """The entry of `PEAKS` for a JAX device of this kind, such as "NVIDIA H200 141GB HBM3e"; None if there is none.

    A kind with a word of `FORMS` has an entry only if that has the word as well.
    """
    known = [name for name in PEAKS if device_kind == name or device_kind.startswith((f"{name} ", f"{name}-"))]
    nearest = max(known, key=len, default="")
    return nearest if nearest and _forms(device_kind) == _forms(nearest) else None


def _forms(kind: str) -> frozenset[str]:
    return FORMS & set(re.split("[ -]", kind.upper()))


def peak_flops(mesh: Mesh, given: float | None) -> float | None:
    """Operations per second of all devices of a mesh.

    Args:
      mesh: the devices.
      given: rate of one device; None for that of `PEAKS`.

    Returns:
      The rate; None if it is not given and the kind of device is not known, as for CPUs.
    """
    known = known_kind(mesh.devices.flat[0].device_kind)
    rate = PEAKS[known] if given is None and known else given
    return None if rate is None else rate * mesh.devices.size


def counter(step: Step[Batch, LossSums], loss: Loss[Batch, LossSums], params: Tree) -> Callable[[Batch], float]:
    """Return a function that counts the operations of the products in the gradient of a batch, over all devices.

    They are counted in the program that `step.first` is traced to, once for each shape (`training.flops`), with the
    forms of convolutions that it computes. Recomputation (`model.execution.remat`) is not counted.

    Args:
      step: the update. With `parallel="pmap"` its program is not available, and that of the loss is traced.
      loss: of a batch, as the update computes it.
      params: trained parameters; they may be deleted afterwards.
    """
    params = placed(params, places(params))
    first: Any = step.first
    found: dict[Any, float] = {}

    def of_program(batch: Batch) -> flops.Flops:
        if hasattr(first, "trace"):
            return flops.of_jaxpr(first.trace(params, batch, abstract_key()).jaxpr.jaxpr)
        plain = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), (params, batch))
        return flops.count(lambda *given: gradients(loss, *given[:2], key=given[2]), *plain, abstract_key())

    def counted(batch: Batch) -> float:
        shape = (batch.src.shape, batch.tgt.shape)
        if shape not in found:
            found[shape] = float(of_program(batch).model)
        return found[shape]

    return counted


PROFILE = "profile"
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
