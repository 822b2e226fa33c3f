"""The C library's memory allocator, set so that a process keeps large blocks that it has freed.

XLA's CPU client allocates the working memory of a program at each call and frees it afterwards. glibc returns blocks
of this size to the operating system at once, which hands out the next one page by page, each filled with zeros. In
training that takes a tenth of the processor time, and more of the clock (docs/performance-log.md).

On hosts of GPUs and TPUs nothing is set: the programs' memory is the device's there, and threads that compile would
wait for each other at the one heap.
"""

import ctypes
import importlib
import importlib.metadata
import pkgutil
from pathlib import Path

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
"""Names and numbers of glibc's `malloc.h`."""


def keep_freed_memory() -> bool:
    """Let this process keep what it frees: for programs that train, called once at their start.

    All threads then share one heap, no block has a mapping of its own, and the heap never shrinks. A process holds as
    much memory as it once needed. It works only before JAX starts its backends, whose threads have heaps of their own
    afterwards; so `expects_cpu` tells beforehand whether it is of use.

    Returns:
      Whether it is set: False where the C library has no `mallopt`, as on macOS, or refuses.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all([mallopt(M_ARENA_MAX, 1), mallopt(M_MMAP_MAX, 0), mallopt(M_TRIM_THRESHOLD, -1)])


TPUS = ("accel[0-9]*", "vfio/[0-9]*")
GPUS = ("nvidia[0-9]*", "nvhost-gpu*", "nvmap", "dxg", "kfd")
"""Device files in /dev: of TPUs; of GPUs by NVIDIA, on boards of theirs, in Windows' Linux, and by AMD."""


def expects_cpu(platforms: str | None, devices: Path = Path("/dev")) -> bool:
    """Whether JAX will compute on CPUs, as far as can be told before it starts its backends.

    Args:
      platforms: JAX_PLATFORMS (`jax.config.jax_platforms`), of which JAX takes the first; None or "" for its choice: a
        TPU or a GPU if there is one, with a plugin for GPUs. Of other plugins it is believed that they have a device.
      devices: where the system has its device files.
    """
    if platforms:
        return platforms.split(",")[0] == "cpu"
    plugins = _plugins()
    others = [name for name in plugins if not name.startswith(("xla_cuda", "xla_rocm"))]
    gpus = bool(plugins) and any(any(devices.glob(each)) for each in GPUS)
    return not (gpus or others or any(any(devices.glob(each)) for each in TPUS))


def _plugins() -> set[str]:
    """Names of JAX's plugins, from both places where it looks for them."""
    try:
        modules = {module.name for module in pkgutil.iter_modules(importlib.import_module("jax_plugins").__path__)}
    except ImportError:
        modules = set()
    return modules | {entry.name for entry in importlib.metadata.entry_points(group="jax_plugins")}
