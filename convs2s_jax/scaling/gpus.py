"""GPUs that are not attached, described so that XLA's compiler for GPUs takes them for attached ones.

The description is the text of an XLA `GpuTargetConfigProto`. Its numbers are those that XLA itself has for these GPUs
(openxla/xla, xla/backends/gpu/target_config/specs), with the memory of `chips`. What it leaves out, XLA does without.
"""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from convs2s_jax.scaling.chips import RESERVED, Chip

PLUGIN = "jax_cuda13_plugin"
"""The package that holds XLA's compiler for NVIDIA's GPUs, for the version of CUDA that `description` names."""


@dataclass(frozen=True, kw_only=True)
class Core:
    """What a GPU's multiprocessors have.

    Attributes:
      capability: CUDA's compute capability.
      extended: whether programs may use instructions of this capability alone (the "a" of sm_90a).
      count: of multiprocessors.
      units: of each for float32.
      clock: in GHz.
      shared: bytes of shared memory of each.
      shared_by_block: of these, what a block of threads may ask for.
      cache: bytes of the level-2 cache of all.
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
"""By the names of `chips.CHIPS`."""


def has_compiler() -> bool:
    """Whether XLA's compiler for NVIDIA's GPUs is installed."""
    return importlib.util.find_spec(PLUGIN) is not None


def description(chip: Chip) -> str:
    """The text of XLA's description of a GPU. CUDA is taken to be 13.0 and cuDNN 9.10."""
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
