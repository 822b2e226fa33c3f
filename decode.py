"""Translate or label text:  python decode.py --workdir=DIR [--input=FILE] [--output=FILE] [--reference=FILE]."""

from convs2s_jax.commands.decode import console

if __name__ == "__main__":
    console()
