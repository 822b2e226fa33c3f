"""`convs2s import`: import fairseq checkpoints."""

import functools
from typing import Any

from convs2s_jax.commands.shared import tell
from convs2s_jax.core import command_line
from convs2s_jax.core.command_line import Command, Group, Overrides
from convs2s_jax.core.guard import ended_by_signals
from convs2s_jax.interop.orders import FairseqImport

ABOUT = """
Import fairseq checkpoints:

  {program} --checkpoint=FILE.pt --dicts=DIR --workdir=DIR [--config.path.to.field=value ...]

Each checkpoint becomes a workdir for decoding and further training (docs/fairseq.md).
"""


def main(values: dict[str, Any], overrides: Overrides) -> None:
    """Convert checkpoints to workdirs."""
    options = command_line.options_of(FairseqImport, values)
    with ended_by_signals():
        from convs2s_jax.interop.fairseq.importing import import_checkpoints

    import_checkpoints(options, overrides, tell)


COMMAND = Command(
    about=ABOUT,
    groups=(Group("Options", FairseqImport),),
    main=main,
    stores=("checkpoint", "dicts", "workdir", "src_spm", "tgt_spm", "bpe_codes", "config"),
)
console = functools.partial(command_line.run, COMMAND)
