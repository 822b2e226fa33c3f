"""Translate or label text:  python decode.py --workdir=DIR [--input=FILE] [--output=FILE] [--reference=FILE]."""

from convs2s_jax.commands.convs2s import decode

if __name__ == "__main__":
    decode()
