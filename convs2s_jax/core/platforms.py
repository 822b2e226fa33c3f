"""Predict which kind of device JAX will use, before it starts its backends, and explain why it cannot start them."""

import importlib
import importlib.util
import pkgutil
import re
import traceback
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
