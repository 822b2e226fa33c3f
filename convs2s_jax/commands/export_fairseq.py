"""`convs2s export --output=FILE.pt`: export a run to a checkpoint that fairseq can load."""

from typing import Any

from convs2s_jax.commands.shared import tell
from convs2s_jax.core import command_line
from convs2s_jax.core.command_line import Command, Group, Overrides
from convs2s_jax.core.guard import ended_by_signals
from convs2s_jax.interop.orders import FairseqExport

ABOUT = """
Export a run to a checkpoint that fairseq can load:

  {program} --workdir=DIR --output=FILE.pt

The dictionaries are written next to it (docs/fairseq.md).
"""


def main(values: dict[str, Any], overrides: Overrides) -> None:
    """Convert a workdir to a checkpoint."""
    command_line.refuse_overrides(overrides, "an export")
    options = command_line.options_of(FairseqExport, values)
    with ended_by_signals():
        from convs2s_jax.interop.fairseq.exporting import export_checkpoint
        from convs2s_jax.training.run import outputs

    outputs.check_outside_runs(options.output, "--output")
    export_checkpoint(options, tell)


COMMAND = Command(
    about=ABOUT,
    groups=(Group("Options", FairseqExport),),
    main=main,
    stores=("workdir",),
)
