"""`convs2s average`: average several checkpoints into a new workdir."""

import functools
import os
from dataclasses import dataclass
from typing import Any

from convs2s_jax.commands.shared import tell
from convs2s_jax.core import command_line
from convs2s_jax.core.command_line import Command, Group, Overrides
from convs2s_jax.core.config import check
from convs2s_jax.core.guard import ended_by_signals
from convs2s_jax.core.places import check_no_comma

ABOUT = """
Average several checkpoints of a run into a new workdir with a single checkpoint:

  {program} --workdir=DIR --checkpoint=last:2 --output=NEW

Decoding, serving, exporting and reporting use it like any other workdir. To start a new run from it, set
--config.training.finetune_from=NEW (docs/decoding.md).
"""


@dataclass(frozen=True, kw_only=True)
class AverageOptions:
    """The flags of `convs2s average`.

    Attributes:
      workdir: folder of the run, or its address in an object store (gs://BUCKET/NAME, s3://BUCKET/NAME).
      output: folder of the new workdir, or its address.
      checkpoint: steps of checkpoints, or last:N for the last N; the kernels of several checkpoints are averaged.
        Default: only the best checkpoint on validation.
    """

    workdir: str = ""
    output: str = ""
    checkpoint: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("workdir", "output"):
            check(
                getattr(self, name) != "",
                f"--{name} is missing, as in --workdir=runs/demo --checkpoint=last:2 --output=runs/mean",
            )
        check_no_comma("--output", self.output)


def main(values: dict[str, Any], overrides: Overrides) -> None:
    """Average the checkpoints and write the workdir."""
    options = command_line.options_of(AverageOptions, values)
    command_line.refuse_overrides(overrides, "an average")
    with ended_by_signals():
        from convs2s_jax.core import compiled_programs
        from convs2s_jax.translation.averaging import write_average

    compiled_programs.keep(os.environ)
    write_average(options.workdir, options.output, options.checkpoint, tell)


COMMAND = Command(
    about=ABOUT,
    groups=(Group("Options", AverageOptions),),
    main=main,
    stores=("workdir", "output"),
    memory="average fewer checkpoints with --checkpoint",
)
console = functools.partial(command_line.run, COMMAND)
