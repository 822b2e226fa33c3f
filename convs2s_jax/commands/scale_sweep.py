"""`convs2s scale sweep`: plan many meshes, batches and devices, and write a table and a figure."""

import functools
import os
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from convs2s_jax.commands.shared import read_config, tell
from convs2s_jax.core import command_line, local_copies, packages
from convs2s_jax.core.command_line import Command, Group, Overrides
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.files import replace_file
from convs2s_jax.core.guard import ended_by_signals
from convs2s_jax.core.places import joined

ABOUT = """
Plan many cases, and write a table (sweep.csv) and a figure to --output:

  {program} --config=NAME --topologies=v5e:1x1,v5e:4x4,v5e:16x16 --tokens_per_chip=4096 --output=DIR

Each case is compiled once and stored in DIR/cases. Run the same command again to plan the missing cases. The table
includes all cases in the folder with the same configuration, compilers and rates, also those of earlier commands.
"""
TABLE = "sweep.csv"
TAKEN_FROM = MappingProxyType(
    {"parallel": "--ways", **dict.fromkeys(("mesh.data", "mesh.fsdp", "mesh.tensor", "mesh"), "--meshes")}
)
"""Configuration fields that vary between the cases, and the flags that set them."""


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """Which cases to plan: every combination.

    Attributes:
      config: name of a configuration that comes with the package, or path or address of a file. Its mesh sizes and
        its parallel are ignored; its mesh.rules is used.
      output: folder for plans, table and figure, or its address in an object store (gs://BUCKET/NAME,
        s3://BUCKET/NAME).
      topologies: devices, as in `convs2s scale plan --topology`.
      slices: numbers of slices.
      meshes: sizes DATA.FSDP.TENSOR, with -1 for the remaining devices. -1.1.1 is data parallelism; 1.-1.1 shards
        everything (FSDP).
      ways: how an update is distributed, such as jit (see the field parallel).
      tokens: token budgets of a batch over all chips, for strong scaling.
      tokens_per_chip: token budgets of each shard of the rows, for weak scaling.
      length: source and target length in tokens.
      vocabulary: size of both vocabularies, in place of those of the configuration.
      labels: number of a classifier's labels; required to plan a classifier.
      figures: whether to draw the figure.
    """

    config: str = ""
    output: str = ""
    topologies: tuple[str, ...] = ()
    slices: tuple[int, ...] = (1,)
    meshes: tuple[str, ...] = ("-1.1.1",)
    ways: tuple[str, ...] = ("jit",)
    tokens: tuple[int, ...] = ()
    tokens_per_chip: tuple[int, ...] = ()
    length: int = 64
    vocabulary: int | None = None
    labels: int | None = None
    figures: bool = True

    def __post_init__(self) -> None:
        for name in ("config", "output", "topologies", "slices", "meshes", "ways"):
            check(len(getattr(self, name)) > 0, f"--{name} is missing")
        check(
            len(self.tokens) + len(self.tokens_per_chip) > 0,
            "--tokens and --tokens_per_chip are missing: set the size of a batch, as in --tokens_per_chip=4096",
        )
        check(min((*self.tokens, *self.tokens_per_chip)) >= 2, "--tokens and --tokens_per_chip: use 2 or more")
        for number in self.slices:
            check(number >= 1, f"--slices contains {number}: use 1 or more")
        check(self.length >= 1, f"--length={self.length}: use 1 or more")
        check(
            self.vocabulary is None or 5 <= self.vocabulary < 2**31,
            f"--vocabulary={self.vocabulary}: use at least 5 and less than {2**31}",
        )
        check(self.labels is None or self.labels >= 2, f"--labels={self.labels}: use 2 or more")


def main(values: dict[str, Any], overrides: Overrides) -> None:
    """Plan the cases, write the table, and draw the figure."""
    options = command_line.options_of(SweepOptions, values)
    check_overrides(overrides)
    cfg = read_config(options.config, overrides)
    if options.figures:  # before planning, which may take hours
        packages.check_installed("drawing a figure (or use --nofigures)", ["matplotlib"], "plan")
    with ended_by_signals():
        from convs2s_jax.scaling import plan, sweep, topology
        from convs2s_jax.training.run import outputs

    outputs.check_outside_runs(options.output, "--output")
    wanted = sweep.cases(
        options.topologies,
        options.slices,
        options.meshes,
        options.ways,
        tokens=options.tokens,
        tokens_per_chip=options.tokens_per_chip,
        length=options.length,
    )
    topology.only_compile(os.environ)
    topology.reserve(topology.virtual_devices(options.topologies))
    sizes = plan.sizes_of(cfg, options.vocabulary, options.labels)
    earlier = (f"{sweep.CASES}/",)
    with local_copies.outgoing_folder("--output", options.output, tell, reused=earlier, last=TABLE) as made:
        folder, _, save = made
        rows = sweep.run(cfg, wanted, folder, sizes, lambda sentence: print(sentence, flush=True), save)  # noqa: T201
        replace_file(folder / TABLE, sweep.as_csv(rows))
        drawn = sweep.draw(rows, folder) if options.figures else []
    print(f"written: {', '.join(joined(options.output, name) for name in [TABLE, *drawn])}")  # noqa: T201


def check_overrides(overrides: Overrides) -> None:
    """Raise UserError for a field that the cases set, such as --config.mesh.fsdp."""
    for field, text in overrides:
        if field in TAKEN_FROM:
            name = f"{command_line.PREFIX}{field}"
            others = "; mesh.rules can be set alone" if field == "mesh" else ""
            raise UserError(f"{name}={text}: a sweep sets this with {TAKEN_FROM[field]}; use that flag instead{others}")


COMMAND = Command(about=ABOUT, groups=(Group("Options", SweepOptions),), main=main, stores=("config", "output"))
console = functools.partial(command_line.run, COMMAND)
