"""Train a translator:  python train.py --config=configs/FILE.py --workdir=DIR [--config.path.to.field=value ...].

Running the same command again continues the run. SIGINT or SIGTERM saves and ends it.
"""

from pathlib import Path

from absl import flags

from convs2s_jax.core.command_line import read_config, run
from convs2s_jax.core.config import build
from convs2s_jax.core.errors import UserError
from convs2s_jax.training.config import Config
from convs2s_jax.training.loop import train

CONFIG = flags.DEFINE_string("config", "", "configuration file; --config.path.to.field=value overrides a field")
WORKDIR = flags.DEFINE_string("workdir", "", "folder for everything the run writes; an existing run is continued")


def main(overrides: list[tuple[str, str]]) -> None:
    """Read the configuration and train."""
    for name, value in (("config", CONFIG.value), ("workdir", WORKDIR.value)):
        if not value:
            raise UserError(f"--{name} is missing: train.py --config=configs/cldr_en_de.py --workdir=runs/demo")
    train(build(Config, read_config(CONFIG.value, overrides)), Path(WORKDIR.value))


if __name__ == "__main__":
    run(main)
