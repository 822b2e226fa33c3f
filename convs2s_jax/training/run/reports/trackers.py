"""Experiment trackers: services that collect the metrics of many runs, beside metrics.jsonl and TensorBoard.

Without settings of their own they write into the workdir and reach no network: Weights & Biases in its offline mode,
MLflow into a database file. Their environment variables, such as WANDB_MODE and MLFLOW_TRACKING_URI, work as ever.
"""

import hashlib
import importlib.util
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

from convs2s_jax.core.errors import UserError, first_line
from convs2s_jax.core.files import replace_file

PROJECT = "convs2s_jax"
"""Project, or experiment, of the runs, unless the environment names one."""
DATABASE = "mlflow.db"
"""MLflow's file in the workdir."""
LONGEST, AT_ONCE, NUMBERS_AT_ONCE = 500, 100, 1000
"""Most characters of a parameter's value, and most parameters and numbers in a request, that MLflow takes."""
LONGEST_LABEL = 150
"""Most characters of a label in a name of numbers, of which MLflow takes 250."""
RUN_ID = "tracker_id"
"""File in the workdir: the id of its run, the same for all trackers."""
Values = Mapping[str, float | int]


class RunName(NamedTuple):
    """What a tracker calls a run: an id that no other run has, and a name for people."""

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

        mode: Any = os.environ.get("WANDB_MODE", "offline")  # its own check has a sentence
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

        Weights & Biases takes no step before the last one into its curves.
        """
        if step < self._last:
            self._run.summary.update(dict(values))
        else:
            self._run.log(dict(values), step=step)
            self._last = step

    def close(self, *, failed: bool) -> None:
        """End the run's part of this process."""
        self._run.finish(exit_code=int(failed))


class MLflow:
    """MLflow: the file `mlflow.db` of the workdir, for `mlflow ui --backend-store-uri sqlite:///WORKDIR/mlflow.db`."""

    def __init__(self, workdir: Path, run: RunName, fields: Mapping[str, Any]) -> None:
        """Open the run, or create it with the configuration as its parameters."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of libraries of MLflow, about each other
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
    """A name of numbers as MLflow takes it: of "test/f1/C#" it is "test/f1/C-23-", with the number of a code point.

    All characters of a label but letters, digits, spaces and _ are written so, and a long one ends in its checksum.
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
      package: that it needs.
      open: (workdir, name of the run, fields of the configuration by path) -> the tracker.
    """

    package: str
    open: Callable[[Path, RunName, Mapping[str, Any]], Tracker]


TRACKERS: Mapping[str, Entry] = MappingProxyType({"wandb": Entry("wandb", WandB), "mlflow": Entry("mlflow", MLflow)})


def check_installed(names: Sequence[str]) -> None:
    """Refuse trackers whose package is not installed.

    Raises:
      UserError: how to install it.
    """
    for name in names:
        if importlib.util.find_spec(TRACKERS[name].package) is None:
            raise UserError(f"training.trackers has '{name}': pip install '.[{name}]'")


class Trackers:
    """The trackers of a run. One that fails is told once and not used again: it does not end a training."""

    def __init__(
        self,
        names: Sequence[str],
        workdir: Path,
        address: str,
        config: Mapping[str, Any],
        tell: Callable[[str], None],
        *,
        step: int,
    ) -> None:
        """Open them.

        Args:
          names: of the trackers.
          workdir: of the run, on this machine.
          address: of the workdir, the same on each machine where the run is continued.
          config: the configuration as nested dictionaries.
          tell: tells the user a sentence.
          step: updates done; a run that begins has a new id.
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
            self._tell(f"{name} failed and gets no more metrics of this start: {first_line(error)}")


def run_id(workdir: Path, address: str, *, step: int) -> str:
    """The id of the run in a workdir: new where the run begins, then that of the workdir's file.

    The file names the address too, so that a copy of the workdir is a run of its own. A run that an earlier version
    began has no such file; its id is the checksum of its address.
    """
    path, place = workdir / RUN_ID, hashlib.sha256(address.encode()).hexdigest()[:12]
    if step:
        if not path.exists():
            return place
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
