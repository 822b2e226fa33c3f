"""Import from and export to fairseq:  python -m convs2s_jax.interop.fairseq import|export --flag=value ..."""

import sys

from convs2s_jax.interop.fairseq_command import run

if __name__ == "__main__":
    run("convs2s_jax.interop.fairseq", sys.argv[1:])
