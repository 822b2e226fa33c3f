"""The reports of a run: metrics.jsonl, TensorBoard events, a log and a progress bar."""

import contextlib
import dataclasses
import importlib
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, cast

from jax.tree_util import keystr, tree_leaves_with_path
from tqdm import tqdm

from convs2s_jax.core.checksums import checksum
from convs2s_jax.core.errors import UserError, first_line, one_line
from convs2s_jax.core.files import is_at, no_link
from convs2s_jax.core.guard import located
from convs2s_jax.training.run.reports import records
from convs2s_jax.training.run.reports.records import Facts, now
from convs2s_jax.training.run.reports.trackers import TrackedRun, Trackers
from convs2s_jax.training.run.run_folder import LOG


def _without_torch(name: str) -> ModuleType:
    """Import a module with torch hidden: it would import torch if installed, which takes seconds and is not needed."""
    if "torch" in sys.modules:
        return importlib.import_module(name)
    sys.modules["torch"] = None  # type: ignore[assignment]  # now its import fails, as if it were not installed
    try:
        return importlib.import_module(name)
    finally:
        del sys.modules["torch"]


tensorboardX = _without_torch("tensorboardX")
proto = tensorboardX.proto.event_pb2
logging.getLogger("tensorboardX.x2num").setLevel(logging.ERROR)  # otherwise each NaN prints a line next to the progress
_SECONDS = 60
"""Maximum time that events wait in memory."""


class Events:
    """Appends events to its own file in a folder.

    tensorboardX's SummaryWriter writes in a thread. On a full disk that thread ended with a traceback, and the run
    waited for it forever; here the error reaches the caller.
    """

    def __init__(self, folder: Path, *, step: int) -> None:
        """Begin after `step` updates: later events of earlier files are hidden. Raises OSError if it cannot."""
        folder.mkdir(parents=True, exist_ok=True)
        self._file = tensorboardX.event_file_writer.EventsWriter(
            str(folder / "events"), filename_suffix=f".{os.getpid()}"
        )
        self._flushed = time.monotonic()
        start = proto.SessionLog(status=proto.SessionLog.START)
        self._file.write_event(proto.Event(step=step + 1, wall_time=time.time(), session_log=start))

    def write(self, name: str, value: float | int, *, step: int) -> None:
        """Add a number. Raises OSError if the disk is full."""
        summary = tensorboardX.summary.scalar(name, value)
        self._file.write_event(proto.Event(step=step, wall_time=time.time(), summary=summary))
        if time.monotonic() > self._flushed + _SECONDS:
            self._file.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        """Write what waits in memory. Raises OSError if the disk is full."""
        self._file.close()


def show(sentence: str) -> str:
    """Show a sentence to the user on standard error; return its line for the log."""
    tqdm.write(sentence, file=sys.stderr)
    return _stamped(sentence)


def _stamped(sentence: str) -> str:
    return f"{now()} {sentence}\n"


class Reports:
    """Writes the metrics of one run into its workdir and shows progress on standard error.

    metrics.jsonl has one line per report. When a run resumes from a step, the lines of later steps are dropped, and
    damaged ones are put aside.

    Attributes:
      samples: folder of outputs of the validation set.
    """

    def __init__(
        self,
        workdir: Path,
        *,
        step: int,
        validated: bool = True,
        told: Sequence[str] = (),
        found: Facts | None = None,
        trackers: Sequence[str] = (),
        address: str = "",
        config: Mapping[str, Any] = MappingProxyType({}),
        total: int | None = None,
    ) -> None:
        """Begin after `step` updates.

        Args:
          workdir: of the run.
          step: updates done.
          validated: whether the validation of this step is done; see `records.keep_up_to`.
          told: lines for the log that the user has already been shown.
          found: the facts of this start.
          trackers: names of trackers that also receive the metrics.
          address: of a workdir in an object store, for the trackers; "" for a folder.
          config: the configuration as nested dictionaries, for the trackers.
          total: number of updates in the whole run, for the progress bar; None if unknown.
        """
        self._workdir, self.samples = workdir, workdir / "samples"
        damaged = records.keep_up_to(workdir, step, validated=validated)
        self._log = open(workdir / LOG, "a", encoding="utf-8", errors="backslashreplace", opener=no_link)  # noqa: SIM115
        self._metrics = open(workdir / records.METRICS, "a", encoding="utf-8", opener=no_link)  # noqa: SIM115
        self._log.writelines(told)
        self._log.flush()
        self._events = Events(workdir / "tensorboard", step=step)
        self._bar = tqdm(total=total, initial=step, unit="step", dynamic_ncols=True, disable=None)
        self._at = f"step {step}"
        for sentence in damaged:
            self.tell(sentence)
        self._facts = records.write_start(workdir, found or Facts())
        place = address or str(workdir.absolute())
        fields = tree_leaves_with_path(dict(config), is_leaf=lambda value: not isinstance(value, dict))
        tracked = TrackedRun(
            id=checksum(f"{place} {self._facts.begun}".encode())[:12],
            name=place.rpartition("/")[2],
            workdir=workdir,
            fields={keystr(path, simple=True, separator="."): value for path, value in fields},
        )
        self._trackers = Trackers(trackers, tracked, self.tell)

    def __enter__(self) -> "Reports":
        return self

    def __exit__(self, kind: object, error: BaseException | None, *_: Any) -> None:
        self._bar.close()
        failed = isinstance(error, Exception)  # signals are not Exceptions
        self._trackers.close(failed=failed)
        with contextlib.ExitStack() as files:
            if kind is not None:  # a full disk is reported once, by the message that says what was lost
                files.enter_context(contextlib.suppress(OSError))
            for file in (self._metrics, self._log, self._events):
                files.callback(file.close)
            if isinstance(error, Exception):  # whoever catches it tells the user
                why = one_line(str(error)) if isinstance(error, UserError) else first_line(error)
                files.callback(self._logged, _stamped(f"stopped at {self._at}: {why}"))
                if is_at(self._log.fileno(), self._workdir / LOG):  # not in another workdir of that name
                    files.callback(self._record, ended=now(), stopped=self._at, why=why.rstrip("."))

    def tell(self, sentence: str) -> None:
        """Show a sentence to the user and write it to the log."""
        self._logged(show(sentence))

    def rate(self, sentence: str) -> None:
        """Tell of a change of the learning rate. A continued run may repeat one."""
        self.tell(sentence)
        self._record(rates=tuple(dict.fromkeys([*self._facts.rates, sentence])))

    def end(self, where: str, why: str, *, time: str) -> None:
        """Tell where and why training ended, and how its time was spent."""
        self.tell(f"time: {time}")
        self.tell(f"stopped at {where}: {why}")
        self._record(ended=now(), stopped=where, why=why, time=time)

    def _record(self, **new: Any) -> None:
        self._facts = dataclasses.replace(self._facts, **new)
        records.write_facts(self._workdir, self._facts)

    def _logged(self, line: str) -> None:
        with located(self._workdir):
            self._log.write(line)
            self._log.flush()

    def has(self, *, split: str, step: int) -> bool:
        """Whether metrics.jsonl has an intact line of this split and step."""
        intact, _ = records.read_metrics(self._workdir)
        return any((record["split"], record["step"]) == (split, step) for _, record in intact)

    def advance(self, step: int, epoch: int) -> None:
        """Move the progress bar."""
        self._at = f"step {step}, epoch {epoch}"
        self._bar.update(step - self._bar.n)

    def metrics(self, *, step: int, epoch: int, split: str, loss: float, **others: float | int) -> None:
        """Write one line of metrics.

        Args:
          step, epoch: current step and epoch.
          split: train, valid or test.
          loss: nats per target token.
          others: further metrics, such as bleu, learning_rate or tokens_per_second; docs/training.md lists them all.
        """
        values = {"loss": loss, "perplexity": math.inf if loss >= 700 else math.exp(loss), **others}
        finite = {name: value if math.isfinite(value) else None for name, value in values.items()}  # as JSON can say
        with located(self._workdir):
            self._metrics.write(records.metrics_line({"step": step, "epoch": epoch, "split": split, **finite}))
            self._metrics.flush()
            for name, value in values.items():
                self._events.write(f"{split}/{name}", value, step=step)
        self._trackers.log({f"{split}/{name}": value for name, value in values.items()}, step)
        shown = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
        sentence = f"step {step} epoch {epoch} {split}: {shown}"
        if split != "train" or self._bar.disable:
            self.tell(sentence)
        else:
            self._bar.set_postfix_str(f"epoch {epoch} loss {loss:.3f}")
            self._logged(_stamped(sentence))


class _Silence:
    def __getattr__(self, _name: str) -> Callable[..., None]:
        return lambda *_given, **_named: None

    def __enter__(self) -> "_Silence":
        return self

    def __exit__(self, *_: Any) -> None:
        pass


def silence() -> Reports:
    """The reports of all processes but the primary one: whatever is called does and returns nothing."""
    return cast(Reports, _Silence())
