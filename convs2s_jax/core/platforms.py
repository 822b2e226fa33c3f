"""What is decided before JAX starts its backends: the kind of device, flags of XLA, and the allocator of the host."""

import ctypes
import importlib
import importlib.util
import pkgutil
import re
import shlex
import traceback
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

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
    """Whether JAX will compute on CPUs.

    Args:
      platforms: JAX_PLATFORMS (`jax.config.jax_platforms`), of which JAX uses the first. None or "" for JAX's own
        choice, which is a TPU with libtpu or a GPU with a plugin, if there is one. Other plugins are assumed to have a
        device.
      devices: folder of the system's device files.
    """
    if platforms:
        return platforms.split(",")[0] == "cpu"
    plugins = _plugins()
    others = [name for name in plugins if not name.startswith(("xla_cuda", "xla_rocm"))]
    gpus = bool(plugins) and _any(devices, GPUS)
    tpus = importlib.util.find_spec("libtpu") is not None and _any(devices, TPUS)
    return not (gpus or others or tpus)


def rules_out_accelerators(platforms: str | None, devices: Path = Path("/dev")) -> bool:
    """Whether JAX is set to use CPUs, or there is no device file of a GPU or TPU. Arguments as in `expects_cpu`."""
    if platforms:
        return platforms == "cpu"
    return not _any(devices, GPUS + TPUS)


def unavailable(error: Exception, platforms: str | None) -> str | None:
    """Return the message for an error that JAX raises if a platform is absent from this machine; None for any other.

    Args:
      error: what JAX raised.
      platforms: JAX_PLATFORMS.
    """
    found = _UNABLE.match(str(error)) if isinstance(error, RuntimeError) else None
    if found and any(reason in found[2] for reason in _ABSENT):
        name, why = found.groups()
    elif isinstance(error, AssertionError) and _raised_at_start(error):
        name, why = platforms or "the chosen platform", "there is no such device"
    else:
        return None
    chosen, remedy = (f"JAX_PLATFORMS={platforms}: ", "unset it or ") if platforms else ("", "")
    return f"{chosen}JAX cannot use {name} on this machine ({why}); {remedy}set JAX_PLATFORMS=cpu"


def _raised_at_start(error: Exception) -> bool:
    """Whether an error comes from the function of JAX that starts all platforms.

    It skips GPUs without a device file, and asserts that a platform is left.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    names = [(frame.f_globals.get("__name__"), frame.f_code.co_name) for frame in frames]
    return names[-1:] == [("jax._src.xla_bridge", "backends")]


def _any(devices: Path, patterns: tuple[str, ...]) -> bool:
    return any(True for pattern in patterns for _ in devices.glob(pattern))


def _plugins() -> set[str]:
    """Return the names of JAX's plugins, from both places where JAX looks for them."""
    try:
        modules = {module.name for module in pkgutil.iter_modules(importlib.import_module("jax_plugins").__path__)}
    except ImportError:
        modules = set()
    from importlib.metadata import entry_points  # takes longer to import than all else here

    return modules | {entry.name for entry in entry_points(group="jax_plugins")}


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


class Flags(NamedTuple):
    """A set of flags.

    Attributes:
      variable: environment variable. TPU flags belong to libtpu; XLA exits on flags in XLA_FLAGS that it does not know.
      flags: flag -> its value and purpose.
    """

    variable: str
    flags: Mapping[str, tuple[str, str]]


SETS: Mapping[FlagSet, Flags] = MappingProxyType(
    {
        "none": Flags("XLA_FLAGS", {}),
        "tpu": Flags(
            "LIBTPU_INIT_ARGS",
            {
                "xla_tpu_enable_async_collective_fusion": ("true", "overlap collectives with other operations"),
                "xla_tpu_enable_async_collective_fusion_fuse_all_gather": ("true", "the same for gathers (fsdp)"),
                "xla_tpu_enable_async_collective_fusion_multiple_steps": ("true", "a collective may span operations"),
                "xla_tpu_overlap_compute_collective_tc": ("true", "let the matrix unit work during collectives"),
                "xla_enable_async_all_gather": ("true", "start all-gathers before the result is needed"),
                "xla_tpu_enable_data_parallel_all_reduce_opt": ("true", "reduce gradients while others are computed"),
                "xla_tpu_data_parallel_opt_different_sized_ops": ("true", "the same for arrays of different sizes"),
            },
        ),
        "gpu": Flags(
            "XLA_FLAGS",
            {
                "xla_gpu_enable_latency_hiding_scheduler": ("true", "schedule operations to overlap collectives"),
                "xla_gpu_enable_pipelined_all_gather": ("true", "gather for the next loop iteration (fsdp)"),
                "xla_gpu_enable_pipelined_reduce_scatter": ("true", "reduce-scatter in the next loop iteration (fsdp)"),
                "xla_gpu_enable_pipelined_all_reduce": ("true", "all-reduce in the next loop iteration"),
                "xla_gpu_all_reduce_combine_threshold_bytes": (
                    "134217728",
                    "combine small gradients in one all-reduce",
                ),
            },
        ),
    }
)


def add_flags(name: FlagSet, environment: MutableMapping[str, str]) -> None:
    """Add a set to the variables of the process. Flags that are already set stay unchanged.

    XLA reads the flags once, so call this before the first use of a device.
    """
    variable, flags = SETS[name]
    given = environment.get(variable, "")
    known = {word.lstrip("-").partition("=")[0] for word in given.split()}
    added = [f"--{flag}={value}" for flag, (value, _) in flags.items() if flag not in known]
    if added:
        environment[variable] = " ".join([*given.split(), *added])


def describe_flags(environment: Mapping[str, str]) -> str:
    """Return the variables with XLA flags, whoever set them, as written before a command; "" if none is set."""
    variables = dict.fromkeys(flags.variable for flags in SETS.values())
    return " ".join(
        f"{name}={shlex.quote(environment[name])}" for name in variables if environment.get(name, "").strip()
    )
