"""facts.json: what a training began with, how its learning rate changed, and how it ended. Reports read it."""

import contextlib
import dataclasses
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

from convs2s_jax.core.checksums import DamagedError, parsed, seal, unseal
from convs2s_jax.core.files import content, replace_file
from convs2s_jax.training.run.run_folder import FACTS


class RateChange(NamedTuple):
    """A change of the learning rate.

    Attributes:
      sentence: the time, the reason and both rates.
      before, after: the rates.
    """

    sentence: str
    before: float
    after: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """The facts of a run; those of its last start, unless they say otherwise. One that is not known is empty.

    Attributes:
      begun: time of the first start.
      starts: number of starts.
      devices: with library versions.
      examples: number of training pairs, texts or lines that are used and skipped.
      batches: batches per epoch, their shapes and padding.
      parameters: how many.
      vocabularies: entries of the source and of the target vocabulary.
      origin: step and workdir of the initial parameters, such as "step 441 of runs/base".
      rates: changes of the learning rate between epochs or at validations, of all starts; not those at every update.
      ended: time of the end; "" if training is in progress or was killed.
      stopped: where it ended.
      why: the reason: a limit, a signal or an error.
      time: how the time was spent.
    """

    begun: str = ""
    starts: int = 0
    devices: str = ""
    examples: str = ""
    batches: str = ""
    parameters: int = 0
    vocabularies: tuple[int, ...] = ()
    origin: str = ""
    rates: tuple[RateChange, ...] = ()
    ended: str = ""
    stopped: str = ""
    why: str = ""
    time: str = ""


def read(workdir: Path) -> Facts:
    """The facts of a run. Raises OSError if the file cannot be read, DamagedError if it is not what was written."""
    record: dict[str, Any] = unseal(parsed(content(workdir / FACTS)))
    rates = tuple(RateChange(*change) for change in record["rates"])
    return Facts(**record | {"rates": rates, "vocabularies": tuple(record["vocabularies"])})


def write(workdir: Path, facts: Facts) -> None:
    """Replace the facts of a run. Raises OSError if they cannot be written."""
    replace_file(workdir / FACTS, json.dumps(seal(dataclasses.asdict(facts)), indent=2) + "\n")


def after_earlier_starts(workdir: Path, facts: Facts) -> Facts:
    """The facts of a start with those of earlier ones. If their file is damaged, they are lost."""
    before = Facts()
    with contextlib.suppress(OSError, DamagedError):
        before = read(workdir)
    return dataclasses.replace(
        facts,
        begun=before.begun or now(),
        starts=before.starts + 1,
        origin=facts.origin or before.origin,
        rates=before.rates,
    )


def now() -> str:
    """The time, as it is written."""
    return time.strftime("%Y-%m-%d %H:%M:%S")
