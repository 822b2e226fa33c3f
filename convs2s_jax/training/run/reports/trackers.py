"""Experiment trackers: services that collect the metrics of many runs, in addition to metrics.jsonl and TensorBoard.

By default they write into the workdir and use no network: Weights & Biases in its offline mode, MLflow into a database
file. Their environment variables, such as WANDB_MODE and MLFLOW_TRACKING_URI, work as usual.
"""

import hashlib
import os
import re
import secrets
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from convs2s_jax.core import packages
from convs2s_jax.core.errors import Tell, first_line
from convs2s_jax.core.files import replace_file

PROJECT = "convs2s_jax"
"""Project, or experiment, of the runs, unless the environment sets one."""
DATABASE = "mlflow.db"
"""MLflow's file in the workdir."""
LONGEST, AT_ONCE, NUMBERS_AT_ONCE = 500, 100, 1000
"""Maximum characters of a parameter's value, and maximum parameters and numbers per request, that MLflow accepts."""
LONGEST_LABEL = 150
"""Maximum characters of a label in a metric name, of which MLflow accepts 250."""
RUN_ID = "tracker_id"
"""File in the workdir: the id of its run, the same for all trackers."""
Values = Mapping[str, float | int]


class RunName(NamedTuple):
    """How a tracker identifies a run: by a unique id, and a name for people."""

    id: str
    name: str


class Tracker(Protocol):
    """A tracker of one run."""

    def log(self, values: Values, step: int) -> None:
        """Write numbers by name, such as "train/loss"."""

    def close(self, *, failed: bool) -> None:
        """Write what waits in memory, and whether the run ended with an error."""


class WandB:
    """Weights & Biases: folder `wandb` of the workdir, which `wandb sync` uploads."""

    def __init__(self, workdir: Path, run: RunName, fields: Mapping[str, Any]) -> None:
        """Open the run, or create it."""
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")  # its own check has an error message
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=str(workdir),
            id=os.environ.get("WANDB_RUN_ID", run.id),
            name=os.environ.get("WANDB_NAME", run.name),
            resume="allow",
            mode=mode,
            config=dict(fields),
            settings=wandb.Settings(silent=True, disable_git=True, x_disable_stats=True),
        )
        self._last = self._run.step

    def log(self, values: Values, step: int) -> None:
        """Write numbers. Those of an earlier step, such as test scores of the best checkpoint, go into the summary.

        Weights & Biases accepts no step before the last one in its curves.
        """
        if step < self._last:
            self._run.summary.update(dict(values))
        else:
            self._run.log(dict(values), step=step)
            self._last = step

    def close(self, *, failed: bool) -> None:
        """End this process's part of the run."""
        self._run.finish(exit_code=int(failed))


class MLflow:
    """MLflow: the file `mlflow.db` of the workdir, for `mlflow ui --backend-store-uri sqlite:///WORKDIR/mlflow.db`."""

    def __init__(self, workdir: Path, run: RunName, fields: Mapping[str, Any]) -> None:
        """Open the run, or create it with the configuration as its parameters."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from MLflow's libraries, about each other
            from mlflow.entities import Metric, Param
            from mlflow.tracking import MlflowClient

            self._metric = Metric
            uri = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{(workdir / DATABASE).absolute()}")
            self._client = client = MlflowClient(tracking_uri=uri)
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            found = client.get_experiment_by_name(name)
            experiment = found.experiment_id if found else client.create_experiment(name)
            runs = client.search_runs([experiment], f"tags.workdir = '{run.id}'")
            if runs:
                self._run = str(runs[0].info.run_id)
                client.update_run(self._run, status="RUNNING")
                return
            created = client.create_run(experiment, run_name=run.name, tags={"workdir": run.id})
            self._run = str(created.info.run_id)
            params = [Param(field, str(value)[:LONGEST]) for field, value in fields.items()]
            for first in range(0, len(params), AT_ONCE):
                client.log_batch(self._run, params=params[first : first + AT_ONCE])

    def log(self, values: Values, step: int) -> None:
        """Write numbers, in one request unless they are very many."""
        now = int(time.time() * 1000)
        metrics = [self._metric(mlflow_name(name), float(value), now, step) for name, value in values.items()]
        for first in range(0, len(metrics), NUMBERS_AT_ONCE):
            self._client.log_batch(self._run, metrics=metrics[first : first + NUMBERS_AT_ONCE])

    def close(self, *, failed: bool) -> None:
        """Mark the run as ended, until it is continued."""
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


def mlflow_name(name: str) -> str:
    """Return a metric name that MLflow accepts: "test/f1/C#" becomes "test/f1/C-23-", with the code point in hex.

    All characters of a label but letters, digits, spaces and _ are written so, and a long label ends in its checksum.
    """
    *score, label = name.split("/", 2)
    if len(score) < 2:
        return name
    label = re.sub(r"[^\w ]", lambda found: f"-{ord(found[0]):x}-", label, flags=re.ASCII)
    if len(label) > LONGEST_LABEL:
        label = f"{label[:LONGEST_LABEL]}-{hashlib.sha256(label.encode()).hexdigest()[:12]}"
    return "/".join([*score, label])


class Entry(NamedTuple):
    """A kind of tracker.

    Attributes:
      package: the package that it needs.
      open: (workdir, name of the run, fields of the configuration by path) -> the tracker.
    """

    package: str
    open: Callable[[Path, RunName, Mapping[str, Any]], Tracker]


TRACKERS: Mapping[str, Entry] = MappingProxyType({"wandb": Entry("wandb", WandB), "mlflow": Entry("mlflow", MLflow)})


def check_installed(names: Sequence[str]) -> None:
    """Check that the packages of trackers are installed.

    Raises:
      UserError: one is not; the message says how to install it.
    """
    for name in names:
        packages.check_installed(f"'{name}' in training.trackers", [TRACKERS[name].package], name)


class Trackers:
    """The trackers of a run. One that fails is reported once and not used again; it does not end training."""

    def __init__(
        self,
        names: Sequence[str],
        workdir: Path,
        address: str,
        config: Mapping[str, Any],
        tell: Tell,
        *,
        step: int,
    ) -> None:
        """Open them.

        Args:
          names: of the trackers.
          workdir: of the run, on this machine.
          address: of the workdir, the same on each machine where the run is continued.
          config: the configuration as nested dictionaries.
          tell: called with sentences for the user.
          step: updates done; a new run gets a new id.
        """
        self._tell = tell
        self._open: dict[str, Tracker] = {}
        self._run: RunName | None = None
        for name in names:
            self._try(name, partial(self._begin, name, workdir, address, step, dict(flat(config))))

    def log(self, values: Values, step: int) -> None:
        """Write numbers to all of them."""
        for name, tracker in list(self._open.items()):
            self._try(name, partial(tracker.log, values, step))

    def close(self, *, failed: bool = False) -> None:
        """Close all of them; `failed`: the run ended with an error."""
        for name, tracker in list(self._open.items()):
            self._try(name, partial(tracker.close, failed=failed))

    def _begin(self, name: str, workdir: Path, address: str, step: int, fields: Mapping[str, Any]) -> None:
        if self._run is None:
            self._run = RunName(run_id(workdir, address, step=step), address.rpartition("/")[2])
        self._open[name] = TRACKERS[name].open(workdir, self._run, fields)

    def _try(self, name: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            self._open.pop(name, None)
            self._tell(f"{name} failed and receives no more metrics from this start: {first_line(error)}")


def run_id(workdir: Path, address: str, *, step: int) -> str:
    """Return the id of the run in a workdir: new when the run starts, then that of the workdir's file.

    The file also stores a checksum of the address, so that a copy of the workdir is a separate run.
    """
    path, place = workdir / RUN_ID, hashlib.sha256(address.encode()).hexdigest()[:12]
    if step and path.exists():
        known = re.fullmatch(rf"([0-9a-f]{{12}}) {place}\n", path.read_text(errors="replace"))
        if known:
            return known[1]
    new = secrets.token_hex(6)
    replace_file(path, f"{new} {place}\n")
    return new


def flat(config: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """(path.to.field, value) of each field of nested dictionaries."""
    for name, value in config.items():
        place = f"{path}.{name}" if path else name
        if isinstance(value, Mapping):
            yield from flat(value, place)
        else:
            yield place, value
