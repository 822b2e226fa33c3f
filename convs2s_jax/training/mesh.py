"""The devices as a mesh with three axes: one CPU, the GPUs of a machine, or several TPU slices."""

import math
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import jax
from jax.experimental import mesh_utils
from jax.sharding import Mesh

from convs2s_jax.core.config import check, record
from convs2s_jax.core.errors import UserError

AXES = ("data", "fsdp", "tensor")
ROWS = ("data", "fsdp")
"""The axes over which the rows of a batch are sharded."""
Parallel = Literal["jit", "shard_map", "pmap"]
"""How an update is spread over devices; see `training.parallel`."""


@record(kw_only=False)
class ShardingRule:
    """Sharding of the parameters whose path ends in `path`. Written (path, axes) in configs.

    Attributes:
      path: end of a parameter's path, such as "conv/w" or "encoder/blocks/*/conv/w", where * is any one name or number.
        The parts of a weight-normalised kernel, w/v and w/g, and the optimiser's state follow it.
      axes: for each axis of the array, "tensor" if `tensor` shards it, else None. Between updates `fsdp` or `data`
        shards one of the others.
    """

    path: str
    axes: tuple[Literal["tensor"] | None, ...]

    def __post_init__(self) -> None:
        check(self.axes.count("tensor") <= 1, f"axes is {self.axes}: tensor can shard only one axis")


@record
class MeshConfig:
    """Number of devices along each mesh axis. One axis may be -1, for all remaining devices.

    Attributes:
      data: devices along the data axis, over which each batch is split. If `fsdp` is 1, they shard parameters and
        optimiser state between steps (ZeRO, Rajbhandari et al. 2020), and within a step each has all parameters of its
        `tensor` shard. Only `data` spans TPU slices; if `fsdp` is 1, the devices within a slice form the `fsdp` axis.
      fsdp: devices that split the batch like `data` and shard parameters, gradients and optimiser state (fully sharded
        data parallelism, Zhao et al. 2023). The kernels of a layer are gathered to compute it.
      tensor: devices over which the outputs of each layer and the vocabulary are sharded.
      rules: which axes of some parameters `tensor` shards, before the built-in rules; the first matching rule applies.
        See `convs2s config --config=NAME --shardings=N`.
    """

    data: int = -1
    fsdp: int = 1
    tensor: int = 1
    rules: tuple[ShardingRule, ...] = ()

    RETIRED: ClassVar[Any] = MappingProxyType({"gather_once": []})

    def __post_init__(self) -> None:
        for axis in AXES:
            size = getattr(self, axis)
            check(size == -1 or size >= 1, f"{axis} is {size}: use 1 or more devices, or -1 for the rest")
        rest = [axis for axis in AXES if getattr(self, axis) == -1]
        check(
            len(rest) <= 1, f"{' and '.join(rest)} are -1: only one axis can take the rest; set the others to a number"
        )


def shape(cfg: MeshConfig, devices: int) -> tuple[int, int, int]:
    """Number of devices along (data, fsdp, tensor).

    Raises:
      UserError: the sizes do not fit the number of devices.
    """
    given = [getattr(cfg, axis) for axis in AXES]
    product = math.prod(size for size in given if size != -1)
    wanted = " * ".join(f"{axis} {size}" for axis, size in zip(AXES, given, strict=True) if size != -1)
    there = "there is only 1" if devices == 1 else f"there are only {devices}"
    large = " or ".join(f"mesh.{axis}" for axis, size in zip(AXES, given, strict=True) if size > 1)
    check(product <= devices, f"mesh: {wanted} is {product} devices, but {there}: lower {large}")
    if -1 in given:
        check(
            devices % product == 0,
            f"mesh: {devices} devices cannot be divided by {wanted}: use numbers whose product divides them",
        )
    data, fsdp, tensor = (devices // product if size == -1 else size for size in given)
    return data, fsdp, tensor


def make(cfg: MeshConfig, devices: Sequence[Any] | None = None, *, parallel: Parallel = "jit") -> Mesh:
    """Arrange devices as (data, fsdp, tensor): neighbours along the last axes, different slices along the first.

    With several TPU slices and `fsdp` 1, the rows of a slice are sharded along `fsdp` instead of `data`. Then
    parameters are communicated within each slice, and only gradient sums between slices (docs/decisions.md).

    Args:
      cfg: sizes.
      devices: devices to use, None for all. If the config requests fewer, the first ones are used.
      parallel: how updates are spread over devices; with `pmap`, all devices are along `data`.

    Raises:
      UserError: the config requests more devices than there are, or fewer with several processes, or a `data` that the
        number of TPU slices does not divide.
    """
    devices = list(jax.devices() if devices is None else devices)
    data, fsdp, tensor = shape(cfg, len(devices))
    count = data * fsdp * tensor
    if count < len(devices) and len({device.process_index for device in devices}) > 1:
        raise UserError(
            f"mesh: {count} of {len(devices)} devices: several processes must use all of them; set one axis to -1"
        )
    devices = devices[:count]
    slices, tpu = len(set(slice_numbers(devices))), devices[0].platform == "tpu"
    check(
        slices == 1 or not tpu or data % slices == 0,
        f"mesh.data is {data} on {slices} slices: use a multiple of {slices}, since fsdp and tensor cannot cross the "
        "network between slices",
    )
    if slices == 1 or data % slices:
        return Mesh(mesh_utils.create_device_mesh((data, fsdp, tensor), devices, allow_split_physical_axes=True), AXES)
    within = (data // slices, fsdp, tensor)
    if tpu and fsdp == 1 and parallel != "pmap":
        within = (1, data // slices, tensor)
    found = mesh_utils.create_hybrid_device_mesh(within, (slices, 1, 1), devices, allow_split_physical_axes=True)
    return Mesh(found, AXES)


def slice_numbers(devices: Sequence[Any]) -> list[int]:
    """The slice of each device: groups that a slower network connects. For GPUs, JAX reports their machines."""
    return [getattr(device, "slice_index", None) or 0 for device in devices]


def spans_slices(mesh: Mesh) -> bool:
    """Whether the devices are several TPU slices."""
    devices = list(mesh.devices.flat)
    return devices[0].platform == "tpu" and len(set(slice_numbers(devices))) > 1
