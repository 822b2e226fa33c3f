"""The functions behind the console commands convs2s-train, convs2s-decode and convs2s with its sub-commands."""

import atexit
import gc
import os

from convs2s_jax.core import streams
from convs2s_jax.core.platforms import rules_out_accelerators

streams.open_missing()  # before JAX opens files, which would get the numbers of closed streams
# Of programs that it reads from a cache, XLA says on some Intel processors that they may not be for this one, which is
# wrong (issue 38445 of jax), and compiles them again. It has to be told before JAX is imported. Where there may be a
# GPU or TPU, errors are shown, since they may be the device's.
if rules_out_accelerators(os.environ.get("JAX_PLATFORMS")):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# At its end Python looks through all objects for garbage, twice; for those of JAX that takes a quarter of a second.
atexit.register(gc.freeze)
