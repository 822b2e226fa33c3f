"""Read from workdirs what a report needs, except the model. Nothing is locked and nothing is written."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from convs2s_jax.core.checksums import DamagedError, parsed
from convs2s_jax.core.errors import UserError, counted
from convs2s_jax.core.files import content
from convs2s_jax.core.places import scheme_of
from convs2s_jax.training.run import lock, run_folder
from convs2s_jax.training.run.checkpoints import derived_workdir, position_file
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.reports import records
from convs2s_jax.training.run.reports.records import Facts


class Sample(NamedTuple):
    """The model's output for a line of the validation set at some step."""

    source: str
    hypothesis: str
    reference: str


@dataclass(frozen=True)
class Run:
    """The contents of a workdir.

    Attributes:
      name: short and unique in a report.
      workdir: its folder, or a local copy of it.
      cfg: the configuration.
      records: the reports in metrics.jsonl, in order, without damaged ones.
      facts: those in facts.json.
      samples: samples of each validation, by step.
      problems: a sentence for each file or line that could not be read.
      trainer: the process that is training there now; "" if none is.
      derived: for a workdir that was not trained, "the average of ..." or "an import of ..."; "" for a run.
      place: path, or address in an object store.
    """

    name: str
    workdir: Path
    cfg: Config
    records: tuple[Mapping[str, Any], ...] = ()
    facts: Facts = Facts()
    samples: Mapping[int, tuple[Sample, ...]] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    trainer: str = ""
    derived: str = ""
    place: str = ""

    def reports_of(self, split: str) -> list[Mapping[str, Any]]:
        """The reports of a split."""
        return [record for record in self.records if record["split"] == split]


def read_all(workdirs: Sequence[str], folders: Sequence[Path]) -> list[Run]:
    """Read runs, with names that distinguish them.

    Args:
      workdirs: paths or addresses, as they were given.
      folders: the folder of each, or a copy of it (`store_copy.opened`).

    Raises:
      UserError: a run does not exist or is listed twice, or its configuration cannot be read.
    """
    places = [workdir.rstrip("/") if scheme_of(workdir) else str(Path(workdir)) for workdir in workdirs]
    return [read(*one) for one in zip(folders, names(workdirs), places, strict=True)]


def read(workdir: Path, name: str, place: str = "") -> Run:
    """Read a run; errors as in `read_all`."""
    place = place or str(workdir)
    cfg = run_folder.load_config(workdir)
    problems: list[str] = []
    derived = _derived(workdir)
    of_training = [] if derived else problems  # a derived workdir has no training reports
    records = _records(workdir, of_training)
    found = _facts(workdir, of_training)
    return Run(
        name=name,
        workdir=workdir,
        cfg=cfg,
        records=tuple(records),
        facts=found,
        samples=_samples(workdir / "samples", problems),
        problems=tuple(problem.replace(str(workdir), place) for problem in problems),
        trainer=_trainer(place),
        derived=derived,
        place=place,
    )


def names(workdirs: Sequence[str]) -> list[str]:
    """Shorten paths to as many trailing parts as distinguish them. Raises UserError if one is listed twice."""
    parts = [
        workdir.rstrip("/").split("/") if scheme_of(workdir) else Path(workdir).resolve().parts for workdir in workdirs
    ]
    for workdir, path in zip(workdirs, parts, strict=True):
        if parts.count(path) > 1:
            raise UserError(f"--workdir lists {workdir} twice; a report compares different runs")
    found = [""] * len(parts)
    count = 0
    while len(set(found)) < len(found) or not all(found):
        count += 1
        found = ["/".join(path[-count:]) for path in parts]
    return found


def _derived(workdir: Path) -> str:
    """Describe a workdir created by `convs2s average` or an import, without training; "" for others."""
    with contextlib.suppress(DamagedError, OSError, TypeError, LookupError):  # made by others
        position = position_file.newest(workdir)
        if origin := position.get(derived_workdir.AVERAGED):
            return f"the average of steps {', '.join(map(str, origin['steps']))} of {origin['workdir']}"
        files = position.get(derived_workdir.IMPORTED)
        if files and not (workdir / records.METRICS).exists():
            return f"an import of {', '.join(files)}"
    return ""


def _records(workdir: Path, problems: list[str]) -> list[dict[str, Any]]:
    """Read intact reports. A last line that is still being written is skipped silently."""
    path = workdir / records.METRICS
    try:
        intact, damaged = records.read_metrics(workdir)
    except OSError as error:
        problems.append(f"{path} cannot be read ({error.strerror}), so there are no curves")
        return []
    if damaged and not damaged[-1].endswith(b"\n"):
        damaged.pop()
    if damaged:
        problems.append(f"{path}: {counted(len(damaged), 'damaged line')} skipped")
    if not intact:
        problems.append(f"{path} has no reports yet, so there are no curves")
    return [record for _, record in intact]


def _samples(folder: Path, problems: list[str]) -> dict[int, tuple[Sample, ...]]:
    found = {}
    for path in sorted(folder.glob("*.jsonl")):
        try:
            values = [parsed(line) for line in content(path).split(b"\n") if line]  # texts may contain U+2028
            texts = tuple(Sample(v["source"], v["hypothesis"], v["reference"]) for v in values)
            "".join(text for each in texts for text in each).encode()  # raises unless all are Unicode text
            found[int(path.stem)] = texts
        except (OSError, ValueError, KeyError, TypeError):
            problems.append(f"{path} is damaged and was skipped")
    return dict(sorted(found.items()))


def _facts(workdir: Path, problems: list[str]) -> Facts:
    try:
        return records.read_facts(workdir)
    except (OSError, DamagedError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        problems.append(f"{workdir / run_folder.FACTS} cannot be read ({why}), so devices and reasons are unknown")
        return Facts()


def _trainer(place: str) -> str:
    """The holder of the lock, read from its file or object. The lock itself is not touched."""
    with contextlib.suppress(OSError):
        holder = lock.holder_of(place)
        if holder is not None and holder.is_alive:
            return str(holder).rstrip(",")
    return ""
