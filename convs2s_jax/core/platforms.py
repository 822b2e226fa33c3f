"""What is decided before JAX starts its backends: the kind of device, flags of XLA, and the allocator of the host."""

import ctypes
import re
import shlex
import traceback
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal

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


FlagSet = Literal["none", "tpu", "gpu"]
"""Name of a set of XLA flags that are commonly set for training on many devices. Their effect was not measured here."""


SETS: Mapping[FlagSet, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "none": ("XLA_FLAGS", ()),
        "tpu": (
            "LIBTPU_INIT_ARGS",
            (
                "xla_tpu_enable_async_collective_fusion=true",
                "xla_tpu_enable_async_collective_fusion_fuse_all_gather=true",
                "xla_tpu_enable_async_collective_fusion_multiple_steps=true",
                "xla_tpu_overlap_compute_collective_tc=true",
                "xla_enable_async_all_gather=true",
                "xla_tpu_enable_data_parallel_all_reduce_opt=true",
                "xla_tpu_data_parallel_opt_different_sized_ops=true",
            ),
        ),
        "gpu": (
            "XLA_FLAGS",
            (
                "xla_gpu_enable_latency_hiding_scheduler=true",
                "xla_gpu_enable_pipelined_all_gather=true",
                "xla_gpu_enable_pipelined_reduce_scatter=true",
                "xla_gpu_enable_pipelined_all_reduce=true",
                "xla_gpu_all_reduce_combine_threshold_bytes=134217728",
            ),
        ),
    }
)
"""Sets of flags (docs/training.md says what each is for) and the environment variable that takes them.

TPU flags belong to libtpu; XLA exits on flags in XLA_FLAGS that it does not know.
"""


def add_flags(name: FlagSet, environment: MutableMapping[str, str]) -> None:
    """Add a set to the variables of the process. Flags that are already set stay unchanged.

    XLA reads the flags once, so call this before the first use of a device.
    """
    variable, flags = SETS[name]
    given = environment.get(variable, "")
    known = {word.lstrip("-").partition("=")[0] for word in given.split()}
    added = [f"--{flag}" for flag in flags if flag.partition("=")[0] not in known]
    if added:
        environment[variable] = " ".join([*given.split(), *added])


def describe_flags(environment: Mapping[str, str]) -> str:
    """Return the variables with XLA flags, whoever set them, as written before a command; "" if none is set."""
    variables = dict.fromkeys(variable for variable, _ in SETS.values())
    return " ".join(
        f"{name}={shlex.quote(environment[name])}" for name in variables if environment.get(name, "").strip()
    )
