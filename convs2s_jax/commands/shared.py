"""What several commands use: messages, the configuration of a run, and the end of a process that works with others."""

import sys
from typing import TYPE_CHECKING, NoReturn

from convs2s_jax.core import command_line
from convs2s_jax.core.command_line import Overrides
from convs2s_jax.core.config import build
from convs2s_jax.core.guard import ended_by_signals

if TYPE_CHECKING:
    from convs2s_jax.training.run.config import Config

DISTRIBUTED = "convs2s_jax.training.run.processes.distributed"


def tell(sentence: str) -> None:
    """Print a message to standard error without breaking the progress bar."""
    from tqdm import tqdm  # its import takes 20 ms, which `train` would spend at each start

    tqdm.write(sentence, file=sys.stderr)


def read_config(given: str, overrides: Overrides) -> "Config":
    """Return the configuration of a run. Arguments and errors are as in `command_line.read_config`, and in `build`."""
    fields = command_line.read_config(given, overrides)
    with ended_by_signals():
        from convs2s_jax.training.run.config import Config  # imports JAX
    return build(Config, fields)


def leave(status: int) -> NoReturn:
    """End this process with `distributed.leave`. Until that is imported, there is no other process to agree with."""
    if (distributed := sys.modules.get(DISTRIBUTED)) is not None:
        distributed.leave(status)
    sys.exit(status)
