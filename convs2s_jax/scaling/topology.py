"""The devices of a plan: TPUs and GPUs that need not be attached, or virtual CPU devices.

"v5e:16x16" is a slice of 256 TPUs, for which XLA compiles as if it were attached. "h100:8" are eight GPUs, for which
XLA compiles from their description (`scaling.chips`), but without timing kernels to choose them. "cpu:8" are virtual
devices of this machine.
"""

import contextlib
import importlib.util
import os
import re
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental import topologies

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError, did_you_mean, first_line, shown
from convs2s_jax.scaling import chips
from convs2s_jax.scaling.chips import CHIPS, Chip
from convs2s_jax.training.mesh import slice_numbers

CPU = "cpu"
GPU_COMPILER = "jax_cuda13_plugin"
"""The package that contains XLA's compiler for NVIDIA GPUs, for the CUDA of `chips.gpu_description`."""
MOST_VIRTUAL = 2048
"""Maximum number of virtual devices. XLA runs nothing on more CPU devices, and to create 16,384 takes two minutes."""


@dataclass(frozen=True, kw_only=True)
class Topology:
    """Devices to plan for.

    Attributes:
      name: the name as given.
      chip: rates of each device; None for devices of this machine, which are measured.
      devices: JAX's descriptions of the devices.
      slices: number of slices, which are connected by the slower network.
    """

    name: str
    chip: Chip | None
    devices: tuple[Any, ...]
    slices: int = 1

    def places(self) -> list[tuple[int, tuple[int, ...]]]:
        """Return (slice or machine, coordinates on its torus) of each device."""
        together = self.chip.together if self.chip else 0
        return [
            (
                number or (i // together if together else 0),
                tuple(getattr(device, "coords", None) or ()) if self.chip and self.chip.axes else (),
            )
            for i, (device, number) in enumerate(zip(self.devices, slice_numbers(self.devices), strict=True))
        ]


def named(name: str, *, slices: int = 1) -> Topology:
    """Return the devices that a name describes: CHIP:SHAPE for TPUs, CHIP:NUMBER for GPUs and CPU.

    Args:
      name: such as "v5e:16x16", "v5p:4x4x4", "h100:8" or "cpu:8".
      slices: number of TPU slices, connected by the network.

    Raises:
      UserError: the chip or shape is unknown, its compiler is missing, or this process has too few virtual devices.
    """
    kind, _, shape = name.partition(":")
    if kind != CPU and kind not in CHIPS:
        raise UserError(f"--topology={name}: the chip is {shown(kind)}{did_you_mean(kind, [*CHIPS, CPU])}")
    check(slices >= 1, f"--slices={slices}: use 1 or more")
    chip = CHIPS.get(kind)
    if chip is not None and chip.axes:
        return _tpu(name, chip, shape, slices)
    check(
        bool(re.fullmatch("0*[1-9][0-9]{0,8}", shape)),
        f"--topology={name}: write {kind}:NUMBER of devices, as in {kind}:8",
    )
    count = int(shape)
    whole = f"{kind}:{count * slices}"
    check(slices == 1, f"--slices={slices}: only TPUs have slices; use the total number of devices, as in {whole}")
    if chip is None:
        return Topology(name=name, chip=None, devices=tuple(_virtual(count, name)))
    check(
        count < chip.together or count % chip.together == 0,
        f"--topology={name}: a machine has {chip.together} GPUs; use fewer, or a multiple",
    )
    return _gpu(name, chip, count)


def reserve(count: int) -> None:
    """Give this process `count` virtual CPU devices, unless its devices are in use or the user has set a number.

    Raises:
      UserError: they are more than `MOST_VIRTUAL`.
    """
    check(
        count <= MOST_VIRTUAL,
        f"{count} virtual devices are more than XLA runs programs on: use {MOST_VIRTUAL} or fewer, or plan for TPUs or "
        "GPUs, which need none",
    )
    chosen = "host_platform_device_count" in os.environ.get("XLA_FLAGS", "")
    if not chosen and count > jax.config.values["jax_num_cpu_devices"]:
        with contextlib.suppress(RuntimeError):  # the devices are already in use
            jax.config.update("jax_num_cpu_devices", count)


def _virtual(count: int, name: str) -> Sequence[Any]:
    """Return the first `count` CPU devices of this process. Raises UserError if it has fewer, or as `reserve`."""
    reserve(count)
    devices = jax.devices(CPU)
    check(
        len(devices) >= count,
        f"--topology={name} is planned on {count} virtual devices, but this process has {len(devices)}: set "
        f"XLA_FLAGS=--xla_force_host_platform_device_count={count}",
    )
    return devices[:count]


def only_compile(environment: MutableMapping[str, str]) -> None:
    """Configure a process that only compiles, so that it does not occupy an accelerator.

    libtpu then compiles without looking for a TPU, and several such processes can run at the same time.
    """
    jax.config.update("jax_platforms", "cpu")
    environment.setdefault("TPU_WORKER_HOSTNAMES", "localhost")
    environment.setdefault("TPU_SKIP_MDS_QUERY", "1")
    environment.setdefault("TPU_ACCELERATOR_TYPE", "v5litepod-16")  # any value: without one, libtpu prints a warning
    environment.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")


def _gpu(name: str, chip: Chip, count: int) -> Topology:
    machines = max(1, count // chip.together)
    shape = f"{machines}x1x{count // machines}"  # groups that links connect, machines of each, GPUs of each
    options = {"platform": "cuda", "topology": shape, "target_config": chips.gpu_description(chip)}
    return Topology(name=name, chip=chip, devices=_described(name, GPU_COMPILER, "plan-gpu", chip, options))


def _tpu(name: str, chip: Chip, shape: str, slices: int) -> Topology:
    check(
        bool(re.fullmatch("[0-9]{1,9}(x[0-9]{1,9})*", shape)) and shape.count("x") == chip.axes - 1,
        f"--topology={name}: a {chip.name} slice has {chip.axes} axes, as in {chip.name}:{'x'.join(['4'] * chip.axes)}",
    )
    options: dict[str, Any] = {"platform": "tpu"} if slices == 1 else {"platform": "tpu", "num_slices": slices}
    if shape == "x".join(["1"] * chip.axes):
        options["chips_per_host_bounds"] = (1, 1, 1)
    if chip.name == "v4":
        options["chip_config_name"] = "megacore"  # a chip is one device
    return Topology(name=name, chip=chip, devices=_described(name, "libtpu", "plan", chip, options), slices=slices)


def _described(name: str, compiler: str, extra: str, chip: Chip, options: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the devices as their compiler describes them. UserError if it is not installed or refuses the topology."""
    check(
        importlib.util.find_spec(compiler) is not None,
        f"--topology={name}: {compiler} is not installed, and planning needs this compiler: pip install '.[{extra}]'",
    )
    try:
        return tuple(topologies.get_topology_desc(topology_name=name, **options).devices)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        raise UserError(
            f"--topology={name}: {compiler} refuses it ({first_line(error)}); use a size from {chip.source}, and the "
            f"version of pip install '.[{extra}]'"
        ) from error
