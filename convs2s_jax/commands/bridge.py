"""The commands for checkpoints of fairseq: `convs2s import` and `convs2s export`."""

from collections.abc import Sequence

from convs2s_jax.core import command_line
from convs2s_jax.interop.fairseq.command import COMMANDS


def console(arguments: Sequence[str]) -> None:
    """Run the command named by the last word of the program's name, as in "convs2s import"."""
    command_line.run(COMMANDS[arguments[0].rpartition(" ")[2]], arguments=arguments)
