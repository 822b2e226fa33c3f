"""`convs2s prepare`: prepare the data of a training run before it uses devices."""

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convs2s_jax.commands.shared import read_config, tell
from convs2s_jax.core import command_line
from convs2s_jax.core.command_line import Command, Group, Overrides
from convs2s_jax.core.config import check
from convs2s_jax.core.guard import ended_by_signals
from convs2s_jax.core.places import check_no_comma

ABOUT = """
Learn the vocabularies, tokenise the text and choose the batch shapes of a training run, without training:

  {program} --config=NAME --workdir=DIR [--config.path.to.field=value ...]

`convs2s train` with the same flags finds the results and starts training at once. A machine without accelerators can do
this work once for all processes of a run, and you can read what it reports about the text before training.
"""


@dataclass(frozen=True, kw_only=True)
class PrepareOptions:
    """What to prepare, and where the results go.

    Attributes:
      config: name of a configuration that comes with the package (`convs2s config` lists them), or path or address
        (gs://BUCKET/NAME, s3://BUCKET/NAME) of a Python file or of a run's config.json.
      workdir: workdir of the training run to follow, on a file system that all its machines can access.
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
    cfg = read_config(options.config, overrides)
    with ended_by_signals():
        import jax

        from convs2s_jax.training.run import opening

    settings: Any = jax.config
    settings.update("jax_platforms", "cpu")  # leave accelerators to other programs
    opening.prepare_only(cfg, Path(options.workdir), tell)
    tell("prepared: convs2s train with the same flags continues from here")


COMMAND = Command(about=ABOUT, groups=(Group("Options", PrepareOptions),), main=main, stores=("config",))
console = functools.partial(command_line.run, COMMAND)
