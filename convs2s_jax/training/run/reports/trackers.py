"""Experiment trackers: services that collect the metrics of many runs, in addition to metrics.jsonl and TensorBoard.

By default they write into the workdir and use no network: Weights & Biases in its offline mode, MLflow into a database
file. Their environment variables, such as WANDB_MODE and MLFLOW_TRACKING_URI, work as usual.
"""

import contextlib
import os
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from convs2s_jax.core.errors import Tell, first_line

PROJECT = "convs2s_jax"
"""Project, or experiment, of the runs, unless the environment sets one."""
DATABASE = "mlflow.db"
"""MLflow's file in the workdir."""
Values = Mapping[str, float | int]


class TrackedRun(NamedTuple):
    """A run as its trackers know it.

    Attributes:
      id: the same whenever the run continues; another one for a copy of its workdir.
      name: for people.
      workdir: on this machine.
      fields: of the configuration, by path.
    """

    id: str
    name: str
    workdir: Path
    fields: Mapping[str, Any]


class WandB:
    """Weights & Biases: folder `wandb` of the workdir, which `wandb sync` uploads. Its curves are over "step"."""

    def __init__(self, run: TrackedRun) -> None:
        """Open the run, or create it."""
        import wandb

        mode: Any = os.environ.get("WANDB_MODE", "offline")  # its own check has an error message
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            dir=str(run.workdir),
            id=os.environ.get("WANDB_RUN_ID", run.id),
            name=os.environ.get("WANDB_NAME", run.name),
            resume="allow",
            mode=mode,
            config=dict(run.fields),
            settings=wandb.Settings(silent=True, disable_git=True, x_disable_stats=True),
        )
        self._run.define_metric("*", step_metric="step")

    def log(self, values: Values, step: int) -> None:
        """Write numbers by name, such as "train/loss"."""
        self._run.log({**values, "step": step})

    def close(self, *, failed: bool) -> None:
        """End this process's part of the run; `failed`: with an error."""
        self._run.finish(exit_code=int(failed))


class MLflow:
    """MLflow: the file `mlflow.db` of the workdir, for `mlflow ui --backend-store-uri sqlite:///WORKDIR/mlflow.db`."""

    def __init__(self, run: TrackedRun) -> None:
        """Open the run, or create it with the configuration as its parameters."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # from MLflow's libraries, about each other
            from mlflow.entities import Metric, Param
            from mlflow.tracking import MlflowClient

            self._metric = Metric
            uri = os.environ.get("MLFLOW_TRACKING_URI", f"sqlite:///{(run.workdir / DATABASE).absolute()}")
            self._client = client = MlflowClient(tracking_uri=uri)
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            found = client.get_experiment_by_name(name)
            experiment = found.experiment_id if found else client.create_experiment(name)
            known = client.search_runs([experiment], f"tags.workdir = '{run.id}'")
            opened = known[0] if known else client.create_run(experiment, run_name=run.name, tags={"workdir": run.id})
            self._run = str(opened.info.run_id)
            client.update_run(self._run, status="RUNNING")
            if not known:
                client.log_batch(self._run, params=[Param(field, str(value)) for field, value in run.fields.items()])

    def log(self, values: Values, step: int) -> None:
        """Write numbers. Characters of a label that MLflow does not accept become "-"."""
        now = int(time.time() * 1000)
        names = {name: re.sub(r"[^\w /-]", "-", name, flags=re.ASCII)[:250] for name in values}
        metrics = [self._metric(names[name], float(value), now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self, *, failed: bool) -> None:
        """Mark the run as ended, until it is continued."""
        self._client.set_terminated(self._run, "FAILED" if failed else "FINISHED")


TRACKERS: Mapping[str, Callable[[TrackedRun], WandB | MLflow]] = MappingProxyType({"wandb": WandB, "mlflow": MLflow})
"""By the name of their package and of the extra that installs it."""


class Trackers:
    """The trackers of a run. One that fails is reported once and not used again; it does not end training."""

    def __init__(self, names: Sequence[str], run: TrackedRun, tell: Tell) -> None:
        """Open the trackers with these names; `tell` is called with sentences for the user."""
        self._tell = tell
        self._open: dict[str, WandB | MLflow] = {}
        for name in names:
            with self._failing(name):
                self._open[name] = TRACKERS[name](run)

    def log(self, values: Values, step: int) -> None:
        """Write numbers to all of them."""
        for name, tracker in list(self._open.items()):
            with self._failing(name):
                tracker.log(values, step)

    def close(self, *, failed: bool) -> None:
        """Close all of them; `failed`: the run ended with an error."""
        for name, tracker in list(self._open.items()):
            with self._failing(name):
                tracker.close(failed=failed)

    @contextlib.contextmanager
    def _failing(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._open.pop(name, None)
            self._tell(f"{name} failed and receives no more metrics from this start: {first_line(error)}")
