"""`convs2s import`: import fairseq checkpoints."""

import functools

from convs2s_jax.core import command_line
from convs2s_jax.interop.fairseq_command import COMMANDS

COMMAND = COMMANDS["import"]
console = functools.partial(command_line.run, COMMAND)
