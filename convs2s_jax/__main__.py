"""`python -m convs2s_jax`: the command `convs2s`."""

import sys

from convs2s_jax.commands.convs2s import console

if __name__ == "__main__":
    sys.argv[0] = "convs2s"  # for messages
    console()
