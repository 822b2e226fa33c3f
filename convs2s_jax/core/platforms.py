"""What is decided before JAX starts its backends: the kind of device, and the allocator of the host."""

import ctypes
import re
import shlex
import traceback
from collections.abc import Mapping
from pathlib import Path

TPUS = ("accel[0-9]*", "vfio/[0-9]*")
GPUS = ("nvidia[0-9]*", "nvhost-gpu*", "nvmap", "dxg", "kfd")
"""Device files in /dev for TPUs, and for GPUs: NVIDIA, NVIDIA boards (Jetson), WSL, and AMD."""
_UNABLE = re.compile(r"Unable to initialize backend '([^']+)': (.*?)\.?(?: \((?:set|you may)[^()]*\))?$", re.DOTALL)
"""JAX's message, without the advice at its end."""
_ABSENT = (
    *("is not in the list of known backends", "Failed to open libtpu", "No visible GPU devices"),
    "no supported devices found",
)
"""Parts of the reasons that mean that the device, its driver or its plugin is absent; others may pass."""


def expects_cpu(platforms: str | None, devices: Path = Path("/dev")) -> bool:
    """Whether JAX is set to compute on CPUs, or there is no device file of a GPU or TPU.

    Args:
      platforms: JAX_PLATFORMS (`jax.config.jax_platforms`), of which JAX uses the first. None or "" for JAX's own
        choice.
      devices: folder of the system's device files.
    """
    if platforms:
        return platforms.split(",")[0] == "cpu"
    return not any(True for pattern in GPUS + TPUS for _ in devices.glob(pattern))


def unavailable(error: Exception, platforms: str | None) -> str | None:
    """Return the message for an error that JAX raises if a platform is absent from this machine; None for any other.

    Args:
      error: what JAX raised.
      platforms: JAX_PLATFORMS.
    """
    found = _UNABLE.match(str(error)) if isinstance(error, RuntimeError) else None
    frames = traceback.extract_tb(error.__traceback__)
    if found and any(reason in found[2] for reason in _ABSENT):
        name, why = found.groups()
    elif isinstance(error, AssertionError) and [frame.name for frame in frames][-1:] == ["backends"]:
        # JAX skips GPUs without a device file, and asserts that a platform is left
        name, why = platforms or "the chosen platform", "there is no such device"
    else:
        return None
    chosen, remedy = (f"JAX_PLATFORMS={platforms}: ", "unset it or ") if platforms else ("", "")
    return f"{chosen}JAX cannot use {name} on this machine ({why}); {remedy}set JAX_PLATFORMS=cpu"


M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
"""Constants from glibc's `malloc.h`."""


def keep_freed_memory() -> bool:
    """Make this process keep the memory it frees. Call it once at the start of a training program on CPUs.

    XLA's CPU client allocates the working memory of a program at each call and frees it afterwards. glibc returns
    blocks of this size to the operating system, which hands out the next block page by page, filled with zeros. In
    training this takes a tenth of the processor time. On hosts of GPUs and TPUs, compiling threads would contend for
    the single heap.

    All threads then share one heap, no block has its own mapping, and the heap never shrinks, so a process keeps its
    peak memory. Call it before JAX starts its backends, whose threads get their own heaps otherwise. `expects_cpu`
    predicts whether it is useful.

    Returns:
      Whether it took effect: False if the C library has no `mallopt`, as on macOS, or rejects the setting.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all([mallopt(M_ARENA_MAX, 1), mallopt(M_MMAP_MAX, 0), mallopt(M_TRIM_THRESHOLD, -1)])


def describe_flags(environment: Mapping[str, str]) -> str:
    """Return the variables with XLA flags, as written before a command; "" if none is set."""
    given = {name: environment.get(name, "") for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")}
    return " ".join(f"{name}={shlex.quote(flags)}" for name, flags in given.items() if flags.strip())
