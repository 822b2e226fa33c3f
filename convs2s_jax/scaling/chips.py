"""Published peak rates and memory sizes of TPUs and GPUs, the constants of the roofline.

A rate is an upper bound that no program reaches. Links are counted in one direction. A ring sends to one neighbour
while it receives from the other, and uses both directions of a torus axis with half of the data each. Peaks of products
are the ones that training uses for MFU (`training.run.reports.measures.PEAKS`).

To add a chip, add an entry to `CHIPS` with the page that its numbers are from, and its device kinds to `KINDS`. A GPU
also needs an entry in `CORES`.
"""

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from convs2s_jax.core.errors import UserError, did_you_mean
from convs2s_jax.training.run.reports.measures import PEAKS

GB = 1e9
GIB = 2.0**30
RESERVED = 0.75
"""Fraction of a GPU's memory that JAX reserves for programs by default (XLA_PYTHON_CLIENT_MEM_FRACTION)."""


@dataclass(frozen=True, kw_only=True)
class Chip:
    """Rates and sizes of a chip.

    Attributes:
      name: the name before the colon of a topology.
      peaks: peak FLOP/s of matrix products, by dtype; float32 products use JAX's default precision.
      memory: bytes of its memory (HBM) that programs may use.
      memory_bandwidth: bytes/s between memory and chip.
      link: bytes/s of one link in one direction; for a switch, the sum over all links of the chip to it.
      axes: number of torus axes, each with two links per chip; 0 for a switch.
      wraps: with two axes, the minimum size at which a torus axis is closed to a ring. With three, all axes are closed
        if this divides all sizes of the slice; otherwise none is.
      together: number of chips that are connected by links; 0 for all chips of a slice.
      network: bytes/s of a chip's share of the network between slices or machines, in one direction; 0 if unknown.
      host: bytes/s between the chip and its host (PCIe), in one direction; 0 if unknown.
      in_turn: whether operations without products run before or after those with products, as on GPUs, and not
        concurrently.
      source: where the numbers are published.
    """

    name: str
    peaks: Mapping[str, float]
    memory: float
    memory_bandwidth: float
    link: float
    axes: int = 0
    wraps: int = 0
    together: int = 0
    network: float = 0.0
    host: float = 0.0
    in_turn: bool = False
    source: str

    def peak(self, dtype: str) -> float:
        """Return the peak FLOP/s of products of this dtype. Raises UserError if it is not in the table."""
        if dtype not in self.peaks:
            raise UserError(
                f"the table of chips has no rate of {self.name} for {dtype}; it has {', '.join(self.peaks)}"
            )
        return self.peaks[dtype]

    def rings(self, sizes: Sequence[int]) -> tuple[bool, ...]:
        """Return which axes of a slice of these sizes are closed to rings."""
        if self.axes == 2:
            return tuple(size >= self.wraps for size in sizes)
        return (all(size % self.wraps == 0 for size in sizes),) * len(sizes)


_TPU = "https://docs.cloud.google.com/tpu/docs"
_BOOK = "https://jax-ml.github.io/scaling-book/tpus (links, host)"


def _tpu(
    name: str, kind: str, page: str, *, gib: float, hbm: float, link: float, network: float, axes: int, host: float = 15
) -> Chip:
    """Build the entry of a TPU. At JAX's default precision, its float32 products are a single bfloat16 pass."""
    return Chip(
        name=name,
        peaks=MappingProxyType({"bfloat16": PEAKS[kind], "float32": PEAKS[kind]}),
        memory=gib * GIB,
        memory_bandwidth=hbm * GB,
        link=link * GB,
        axes=axes,
        wraps=16 if axes == 2 else 4,
        network=network * GB,
        host=host * GB,
        source=f"{_TPU}/{page}; {_BOOK}",
    )


def _gpu(
    name: str, kind: str, page: str, *, memory: float, hbm: float, link: float, network: float, host: float
) -> Chip:
    """Build the entry of a GPU with `memory` bytes, eight per switch. Its float32 products are TF32, half as fast."""
    return Chip(
        name=name,
        peaks=MappingProxyType({"bfloat16": PEAKS[kind], "float16": PEAKS[kind], "float32": PEAKS[kind] / 2}),
        memory=RESERVED * memory,
        memory_bandwidth=hbm * GB,
        link=link * GB,
        together=8,
        network=network * GB,
        host=host * GB,
        in_turn=True,
        source=page,
    )


_NVIDIA = "https://www.nvidia.com/en-us/data-center"
_A100, _A100_40, _H100, _H200 = (
    f"NVIDIA {name}" for name in ("A100-SXM4-80GB", "A100-SXM4-40GB", "H100 80GB HBM3", "H200")
)
CHIPS: Mapping[str, Chip] = MappingProxyType(
    {
        chip.name: chip
        for chip in (
            _tpu("v4", "TPU v4", "v4", gib=30.75, hbm=1228, link=45, network=0, axes=3),
            _tpu("v5e", "TPU v5 lite", "v5e", gib=15.75, hbm=819, link=45, network=3.125, axes=2),
            _tpu("v5p", "TPU v5p", "v5p", gib=95.74, hbm=2765, link=90, network=6.25, axes=3),
            _tpu("v6e", "TPU v6 lite", "v6e", gib=31.25, hbm=1638, link=90, network=12.5, axes=2, host=32),
            _gpu("a100", _A100, f"{_NVIDIA}/a100", memory=85_100_068_864, hbm=2039, link=300, network=25, host=32),
            _gpu(
                "a100-40gb", _A100_40, f"{_NVIDIA}/a100", memory=42_331_013_120, hbm=1555, link=300, network=25, host=32
            ),
            _gpu("h100", _H100, f"{_NVIDIA}/h100", memory=84_942_979_072, hbm=3350, link=450, network=50, host=64),
            _gpu("h200", _H200, f"{_NVIDIA}/h200", memory=151_397_597_184, hbm=4800, link=450, network=50, host=64),
        )
    }
)
"""Peaks are from the product pages, without sparsity. The memory of a TPU is the limit up to which its compiler (libtpu
0.0.42.1) accepts programs. The memory of a GPU is `RESERVED` of what XLA lists (`gpu_description`). TPU
links are from the scaling book, nine tenths of the product page's. The network is the machine's, divided by its chips:
2 x 100 Gbit/s for 8 v5e, 50 Gbit/s for a v5p, 4 x 200 Gbit/s for 8 v6e, 200 and 400 Gbit/s for each GPU of a DGX A100
and H100. The link to the host is from the scaling book for TPUs, and half of the bidirectional PCIe rate on the product
pages for GPUs."""

KINDS: Mapping[str, str] = MappingProxyType(
    {
        "TPU v4": "v4",
        "TPU v5 lite": "v5e",
        "TPU v5": "v5p",
        "TPU v5p": "v5p",
        "TPU v6 lite": "v6e",
        _A100: "a100",
        _A100_40: "a100-40gb",
        _H100: "h100",
        _H200: "h200",
    }
)
"""The chip for each device kind of `PEAKS`. GPUs on PCIe cards and partitions of GPUs are not included."""


def named(name: str) -> Chip:
    """Return the chip with this name. Raises UserError if there is none."""
    if name not in CHIPS:
        raise UserError(f"the chip is '{name}'{did_you_mean(name, CHIPS)}")
    return CHIPS[name]


def of_device(kind: str) -> Chip | None:
    """Return the chip of a JAX device kind, such as "TPU v5 lite"; None if it is not in the table."""
    return CHIPS[KINDS[kind]] if kind in KINDS else None


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
_AMPERE = Core(
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
        "a100": _AMPERE,
        "a100-40gb": _AMPERE,
        "h100": _HOPPER,
        "h200": _HOPPER,
    }
)
"""The multiprocessors of each GPU, by its name in `chips.CHIPS`."""


def has_compiler() -> bool:
    """Whether XLA's compiler for NVIDIA GPUs is installed."""
    return importlib.util.find_spec(PLUGIN) is not None


def gpu_description(chip: Chip) -> str:
    """Return XLA's description of a GPU, with which its compiler needs no GPU: the text of a `GpuTargetConfigProto`.

    Its numbers are XLA's own (openxla/xla, xla/backends/gpu/target_config/specs), with the memory of `CHIPS`, for CUDA
    13.0 and cuDNN 9.10. XLA works without the fields that it omits.
    """
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
