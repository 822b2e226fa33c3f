"""Descriptions of GPUs with which XLA's GPU compiler compiles for them although they are not attached.

The description is the text of an XLA `GpuTargetConfigProto`. Its numbers are XLA's own for these GPUs (openxla/xla,
xla/backends/gpu/target_config/specs), with the memory of `chips`. XLA works without the fields that it omits.
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from convs2s_jax.scaling.chips import RESERVED, Chip

PLUGIN = "jax_cuda13_plugin"
"""The package that contains XLA's compiler for NVIDIA GPUs, for the version of CUDA that `description` sets."""


@dataclass(frozen=True, kw_only=True)
class Core:
    """The multiprocessors of a GPU.

    Attributes:
      capability: CUDA's compute capability.
      extended: whether programs may use instructions that only this capability has (the "a" of sm_90a).
      count: number of multiprocessors.
      units: number of float32 units of each.
      clock: clock rate in GHz.
      shared: bytes of shared memory of each.
      shared_by_block: how many of these a block of threads can request.
      cache: bytes of the shared level-2 cache.
    """

    capability: tuple[int, int]
    extended: bool = False
    count: int
    units: int
    clock: float
    shared: int
    shared_by_block: int
    cache: int


_HOPPER = Core(
    capability=(9, 0),
    extended=True,
    count=132,
    units=128,
    clock=1.98,
    shared=233_472,
    shared_by_block=232_448,
    cache=52_428_800,
)
_A100 = Core(
    capability=(8, 0),
    count=108,
    units=64,
    clock=1.41,
    shared=167_936,
    shared_by_block=166_912,
    cache=41_943_040,
)
CORES: Mapping[str, Core] = MappingProxyType(
    {
        "a100": _A100,
        "a100-40gb": _A100,
        "h100": _HOPPER,
        "h200": _HOPPER,
    }
)
"""The multiprocessors of each GPU, by its name in `chips.CHIPS`."""


def has_compiler() -> bool:
    """Whether XLA's compiler for NVIDIA GPUs is installed."""
    return importlib.util.find_spec(PLUGIN) is not None


def description(chip: Chip) -> str:
    """Return XLA's description of a GPU as text. It assumes CUDA 13.0 and cuDNN 9.10."""
    core = CORES[chip.name]
    major, minor = core.capability
    extension = " feature_extension: ACCELERATED_FEATURES" if core.extended else ""
    return f"""
gpu_device_info {{
  cuda_compute_capability {{ major: {major} minor: {minor}{extension} }}
  core_count: {core.count}
  fpus_per_core: {core.units}
  clock_rate_ghz: {core.clock}
  memory_bandwidth: {int(chip.memory_bandwidth)}
  device_memory_size: {int(chip.memory / RESERVED)}
  l2_cache_size: {core.cache}
  shared_memory_per_core: {core.shared}
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: {core.shared_by_block}
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  thread_dim_limit_x: 1024
  thread_dim_limit_y: 1024
  thread_dim_limit_z: 64
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  driver_version: "13.0.0"
  runtime_version: "13.0.0"
  compile_time_toolkit_version: "13.0.0"
  dnn_version: "9.10.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{chip.name}"
"""
