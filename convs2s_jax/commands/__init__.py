"""Entry points of the console commands convs2s-train, convs2s-decode and convs2s with its sub-commands."""

import atexit
import gc
import os

from convs2s_jax.core import guard
from convs2s_jax.core.platforms import expects_cpu

guard.open_missing()  # before JAX opens files, which would get the numbers of closed streams
# On some Intel processors, XLA wrongly reports that cached programs may be for another processor (JAX issue 38445) and
# compiles them again. The log level has to be set before JAX is imported. If there may be a GPU or TPU, errors stay
# visible, because they may come from the device.
if expects_cpu(os.environ.get("JAX_PLATFORMS")):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# At exit, Python runs two garbage collections over all objects. With those of JAX that takes a quarter of a second.
atexit.register(gc.freeze)
