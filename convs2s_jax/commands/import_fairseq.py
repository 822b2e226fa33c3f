"""`convs2s import`: import a fairseq checkpoint."""

import functools
from typing import Any

from convs2s_jax.commands.shared import tell
from convs2s_jax.core import command_line
from convs2s_jax.core.command_line import Command, Group, Overrides
from convs2s_jax.core.guard import ended_by_signals
from convs2s_jax.interop.orders import FairseqImport

ABOUT = """
Import a fairseq checkpoint:

  {program} --checkpoint=FILE.pt --dicts=DIR --workdir=DIR [--config.path.to.field=value ...]

The new workdir serves for decoding and further training (docs/fairseq.md).
"""


def main(values: dict[str, Any], overrides: Overrides) -> None:
    """Convert a checkpoint to a workdir."""
    options = command_line.options_of(FairseqImport, values)
    with ended_by_signals():
        from convs2s_jax.interop.fairseq.importing import import_checkpoint

    import_checkpoint(options, overrides, tell)


COMMAND = Command(
    about=ABOUT,
    groups=(Group("Options", FairseqImport),),
    main=main,
    stores=("workdir",),
)
console = functools.partial(command_line.run, COMMAND)
