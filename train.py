"""Train a model:  python train.py --config=configs/FILE.py --workdir=DIR [--config.path.to.field=value ...]."""

from convs2s_jax.commands.train import console

if __name__ == "__main__":
    console()
