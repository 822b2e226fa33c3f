"""Predict which kind of device JAX will use, before it starts its backends."""

import importlib
import importlib.util
import pkgutil
from pathlib import Path

TPUS = ("accel[0-9]*", "vfio/[0-9]*")
GPUS = ("nvidia[0-9]*", "nvhost-gpu*", "nvmap", "dxg", "kfd")
"""Device files in /dev for TPUs, and for GPUs: NVIDIA, NVIDIA boards (Jetson), WSL, and AMD."""


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
