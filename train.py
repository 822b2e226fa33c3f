"""Train a model:  python train.py --config=configs/FILE.py --workdir=DIR [--config.path.to.field=value ...]."""

from convs2s_jax.commands.convs2s import train

if __name__ == "__main__":
    train()
