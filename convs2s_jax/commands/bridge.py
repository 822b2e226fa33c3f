"""`convs2s import`: import fairseq checkpoints."""

from collections.abc import Sequence

from convs2s_jax.core import command_line
from convs2s_jax.interop.fairseq_command import COMMANDS


def console(arguments: Sequence[str]) -> None:
    """Run the sub-command. `arguments` are like `sys.argv`."""
    command_line.run(COMMANDS["import"], arguments=arguments)
