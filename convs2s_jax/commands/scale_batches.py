"""Shared flags of `convs2s scale plan` and `check`: the batches of an update, and the plan as a JSON file."""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from convs2s_jax.core import files
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import shown
from convs2s_jax.core.guard import ended_by_signals


@dataclass(frozen=True, kw_only=True)
class Batches:
    """The batches of an update, and the vocabularies that determine its softmax layer.

    Attributes:
      lengths: source and target lengths in tokens, one number for both or two as in 24x32. Each is one batch shape. The
        shape that a run logs as 64 x (24, 32), with 64 rows, is 24x32 here.
      tokens: token budget of a batch over all chips, in place of data.batch.tokens.
      tokens_per_chip: token budget of each shard of the rows, in place of one for all chips.
      vocabulary: size of both vocabularies, in place of those of the configuration.
      labels: number of a classifier's labels; required to plan a classifier.
    """

    lengths: tuple[str, ...] = ("64",)
    tokens: int | None = None
    tokens_per_chip: int | None = None
    vocabulary: int | None = None
    labels: int | None = None

    def __post_init__(self) -> None:
        check(len(self.lengths) > 0, "--lengths is empty: use one or more lengths, as in --lengths=16,32,64")
        for each in self.lengths:
            readable = re.fullmatch("[0-9]{1,9}(x[0-9]{1,9})?", each) is not None
            check(readable, f"--lengths contains {shown(each)}: use a number of tokens, or SOURCExTARGET as in 24x32")
        check(
            self.tokens is None or self.tokens_per_chip is None,
            "--tokens with --tokens_per_chip: one is for all chips together, the other for each; use one of them",
        )
        for name, least in (("tokens", 2), ("tokens_per_chip", 2), ("vocabulary", 5), ("labels", 2)):
            value = getattr(self, name)
            check(value is None or value >= least, f"--{name}={value}: use {least} or more")
            check(value is None or value < 2**31, f"--{name}={value}: use less than {2**31}")

    def given(self) -> dict[str, Any]:
        """Return the arguments of `scaling.plan.make` that describe the batches, with lengths as numbers or pairs."""
        split = [tuple(map(int, each.split("x"))) for each in self.lengths]
        lengths = [each if len(each) == 2 else each[0] for each in split]
        return {**asdict(self), "lengths": lengths}


def check_json(name: str) -> None:
    """Raise UserError early if --json is set to a file of a run or cannot be written: a plan takes minutes."""
    with ended_by_signals():
        from convs2s_jax.training.run import outputs

    outputs.check_outside_runs(name, "--json")
    if name:
        with files.writing(f"--json={name}", "choose another file"):
            files.check_replaceable(Path(name))


def write_json(name: str, values: Mapping[str, Any]) -> None:
    """Write the file of --json, if set."""
    if name:
        files.replace_file(Path(name), json.dumps(values, indent=1) + "\n")
