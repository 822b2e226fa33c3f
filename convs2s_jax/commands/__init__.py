"""The functions behind the console commands convs2s-train, convs2s-decode and convs2s with its sub-commands."""

from convs2s_jax.core import streams

streams.open_missing()  # before JAX opens files, which would get the numbers of closed streams
