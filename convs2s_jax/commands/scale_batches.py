"""What `convs2s scale plan` and `check` share: the batches of an update, and the plan as a file of JSON."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convs2s_jax.core import files
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError, shown
from convs2s_jax.scaling import plan
from convs2s_jax.scaling.topology import Topology
from convs2s_jax.training.run.config import Config
from convs2s_jax.training.run.programs.configured import vocabularies


@dataclass(frozen=True, kw_only=True)
class Batches:
    """The batches of an update, and the vocabularies that decide about its softmax layer.

    Attributes:
      lengths: tokens of sources and targets, one number for both or two as in 24x32; each is one shape of a batch. A
        shape that the log of a run writes as 64 x (24, 32), 64 rows, is 24x32 here.
      tokens: token budget of a batch on all chips together, in place of data.batch.tokens.
      tokens_per_chip: the budget for each part of the rows, in place of one for all.
      vocabulary: entries of both vocabularies, in place of those of the configuration.
      labels: number of a classifier's labels, which a plan of one needs.
    """

    lengths: tuple[str, ...] = ("64",)
    tokens: int | None = None
    tokens_per_chip: int | None = None
    vocabulary: int | None = None
    labels: int | None = None

    def __post_init__(self) -> None:
        check(len(self.lengths) > 0, "--lengths is empty: give one or more, as in --lengths=16,32,64")
        for each in self.lengths:
            readable = re.fullmatch("[0-9]{1,9}(x[0-9]{1,9})?", each) is not None
            check(readable, f"--lengths has {shown(each)}: write a number of tokens, or sources x targets as in 24x32")
        check(
            self.tokens is None or self.tokens_per_chip is None,
            "--tokens with --tokens_per_chip: one is of all chips, the other of each; give one of them",
        )
        for name, least in (("tokens", 2), ("tokens_per_chip", 2), ("vocabulary", 5), ("labels", 2)):
            value = getattr(self, name)
            check(value is None or value >= least, f"--{name}={value}: use {least} or more")
            check(value is None or value < 2**31, f"--{name}={value}: use less than {2**31}")

    @property
    def pairs(self) -> list[int | tuple[int, int]]:
        """`lengths` as numbers."""
        split = [tuple(map(int, each.split("x"))) for each in self.lengths]
        return [(each[0], each[1]) if len(each) == 2 else each[0] for each in split]


def sizes_of(cfg: Config, vocabulary: int | None, labels: int | None) -> dict[str, int]:
    """Entries of the vocabularies of a plan.

    Raises:
      UserError: the labels of a classifier are not given, or those of another model are.
    """
    check(
        labels is not None or not cfg.classifies,
        "--labels is missing: only the training text of a classifier tells how many there are; use --labels=2 for two",
    )
    check(labels is None or cfg.classifies, f"--labels={labels}: the model is no classifier; leave it out")
    return vocabularies(cfg, vocabulary, labels)


def planned(cfg: Config, devices: Topology, batches: Batches, sizes: Mapping[str, int]) -> plan.Plan:
    """`plan.make` of these batches, for vocabularies of these `sizes`."""
    return plan.make(
        cfg,
        devices,
        lengths=batches.pairs,
        tokens=batches.tokens,
        tokens_per_chip=batches.tokens_per_chip,
        sizes=sizes,
    )


def check_json(name: str) -> None:
    """Raise UserError if the file of --json, if there is one, could not be written: a plan takes minutes."""
    if name:
        try:
            files.check_replaceable(Path(name))
        except OSError as error:
            raise _unwritable(name, error) from error


def write_json(name: str, values: Mapping[str, Any]) -> None:
    """Write the file of --json, if there is one. Raises UserError if it cannot be written."""
    if name:
        try:
            files.replace_file(Path(name), json.dumps(values, indent=1) + "\n")
        except OSError as error:
            raise _unwritable(name, error) from error


def _unwritable(name: str, error: OSError) -> UserError:
    return UserError(f"--json={name} cannot be written: {error.strerror}; give another file")
