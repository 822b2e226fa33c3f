"""Train a model:  python train.py --config=configs/FILE.py --workdir=DIR [--config.path.to.field=value ...]."""

import sys

from convs2s_jax.commands.convs2s import run

if __name__ == "__main__":
    run("train", sys.argv)
