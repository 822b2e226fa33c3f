"""What JAX will compute on, as far as can be told before it starts its backends."""

import importlib
import importlib.util
import pkgutil
from pathlib import Path

TPUS = ("accel[0-9]*", "vfio/[0-9]*")
GPUS = ("nvidia[0-9]*", "nvhost-gpu*", "nvmap", "dxg", "kfd")
"""Device files in /dev: of TPUs; of GPUs by NVIDIA, on boards of theirs, in Windows' Linux, and by AMD."""


def expects_cpu(platforms: str | None, devices: Path = Path("/dev")) -> bool:
    """Whether JAX will compute on CPUs.

    Args:
      platforms: JAX_PLATFORMS (`jax.config.jax_platforms`), of which JAX takes the first; None or "" for its choice: a
        TPU with libtpu, or a GPU with a plugin, if there is one. Of other plugins it is believed that they have a
        device.
      devices: where the system has its device files.
    """
    if platforms:
        return platforms.split(",")[0] == "cpu"
    plugins = _plugins()
    others = [name for name in plugins if not name.startswith(("xla_cuda", "xla_rocm"))]
    gpus = bool(plugins) and _any(devices, GPUS)
    tpus = importlib.util.find_spec("libtpu") is not None and _any(devices, TPUS)
    return not (gpus or others or tpus)


def rules_out_accelerators(platforms: str | None, devices: Path = Path("/dev")) -> bool:
    """Whether JAX is told to use CPUs, or there is no device file of a GPU or TPU. Arguments as for `expects_cpu`."""
    if platforms:
        return platforms == "cpu"
    return not _any(devices, GPUS + TPUS)


def _any(devices: Path, patterns: tuple[str, ...]) -> bool:
    return any(True for pattern in patterns for _ in devices.glob(pattern))


def _plugins() -> set[str]:
    """Names of JAX's plugins, from both places where it looks for them."""
    try:
        modules = {module.name for module in pkgutil.iter_modules(importlib.import_module("jax_plugins").__path__)}
    except ImportError:
        modules = set()
    from importlib.metadata import entry_points  # takes longer to import than all else here

    return modules | {entry.name for entry in entry_points(group="jax_plugins")}
