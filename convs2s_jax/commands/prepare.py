"""The command that makes what a training needs before it takes devices: `convs2s prepare`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from convs2s_jax.commands.decode import tell
from convs2s_jax.core import command_line
from convs2s_jax.core.command_line import Command, Group, Overrides
from convs2s_jax.core.config import build, check
from convs2s_jax.core.places import check_no_comma

ABOUT = """
Learn the vocabularies, tokenise the text and choose the batch shapes of a training, without training:

  {program} --config=NAME --workdir=DIR [--config.path.to.field=value ...]

`convs2s train` with the same flags finds them there and begins at once. So a machine without accelerators can do this
work, once for all processes of a training, and what it says of the text can be read before anything is trained.
"""


@dataclass(frozen=True, kw_only=True)
class PrepareOptions:
    """What to prepare, and where it goes.

    Attributes:
      config: name of a configuration that comes with the package (`convs2s config` lists them), the path of a Python
        file, or that of the config.json of a run.
      workdir: folder of the training that will follow, on a file system that its machines see.
    """

    config: str = ""
    workdir: str = ""

    def __post_init__(self) -> None:
        for name in ("config", "workdir"):
            check(getattr(self, name) != "", f"--{name} is missing, as in --config=cldr_en_de --workdir=runs/a")
        check_no_comma("--workdir", self.workdir)


def main(values: dict[str, Any], overrides: Overrides) -> None:
    """Prepare the data of a run."""
    options = command_line.options_of(PrepareOptions, values)
    # imported here, since they take seconds, which help and mistakes in the flags need not wait for
    from convs2s_jax.training.run import opening
    from convs2s_jax.training.run.config import Config

    cfg = build(Config, command_line.read_config(options.config, overrides))
    settings: Any = jax.config
    settings.update("jax_platforms", "cpu")  # accelerators are somebody else's
    opening.prepare_only(cfg, Path(options.workdir), tell)
    tell("prepared: convs2s train with the same flags goes on from here")


COMMAND = Command(about=ABOUT, groups=(Group("Options", PrepareOptions),), main=main)


def console(arguments: Sequence[str] | None = None) -> None:
    """Run the sub-command. `arguments` are like `sys.argv`; None for those of this process."""
    command_line.run(COMMAND, arguments=arguments)
