"""Published peak rates and memory sizes of TPUs and GPUs, the constants of the roofline.

A rate is an upper bound that no program reaches. Links are counted in one direction. A ring sends to one neighbour
while it receives from the other, and uses both directions of a torus axis with half of the data each. Peaks of products
are the ones that training uses for MFU (`training.run.reports.measures.PEAKS`).

To add a chip, add an entry to `CHIPS` with the page that its numbers are from, and its peak to `PEAKS`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from convs2s_jax.core.errors import UserError
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
      kinds: JAX's kinds of this device, entries of `PEAKS`.
      peaks: peak FLOP/s of matrix products, by dtype; float32 products use JAX's default precision.
      memory: bytes of its memory (HBM) that programs may use.
      memory_bandwidth: bytes/s between memory and chip.
      link: bytes/s of one link in one direction; for a switch, the sum over all links of the chip to it.
      axes: number of torus axes, each with two links per chip; 0 for a switch.
      wraps: with two axes, the minimum size at which a torus axis is closed to a ring. With three, all axes are closed
        if this divides all sizes of the slice; otherwise none is.
      together: number of chips that are connected by links; 0 for all chips of a slice.
      network: bytes/s of a chip's share of the network between slices or machines, in one direction; 0 if unknown.
      in_turn: whether operations without products run before or after those with products, as on GPUs, and not
        concurrently.
      core: fields of XLA's description of a GPU (`gpu_description`) that differ between GPUs.
      source: where the numbers are published.
    """

    name: str
    kinds: tuple[str, ...] = ()
    peaks: Mapping[str, float]
    memory: float
    memory_bandwidth: float
    link: float
    axes: int = 0
    wraps: int = 0
    together: int = 0
    network: float = 0.0
    in_turn: bool = False
    core: str = field(default="", repr=False)
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


def _tpu(name: str, *kinds: str, gib: float, hbm: float, link: float, network: float, axes: int) -> Chip:
    """Build the entry of a TPU. At JAX's default precision, its float32 products are a single bfloat16 pass."""
    return Chip(
        name=name,
        kinds=kinds,
        peaks=MappingProxyType(dict.fromkeys(("bfloat16", "float32"), PEAKS[kinds[0]])),
        memory=gib * GIB,
        memory_bandwidth=hbm * GB,
        link=link * GB,
        axes=axes,
        wraps=16 if axes == 2 else 4,
        network=network * GB,
        source=f"https://docs.cloud.google.com/tpu/docs/{name}; https://jax-ml.github.io/scaling-book/tpus",
    )


def _gpu(name: str, kind: str, core: str, *, memory: float, hbm: float, link: float, network: float) -> Chip:
    """Build the entry of a GPU with `memory` bytes, eight per switch. Its float32 products are TF32, half as fast."""
    peak = PEAKS[kind]
    return Chip(
        name=name,
        kinds=(kind,),
        peaks=MappingProxyType({"bfloat16": peak, "float16": peak, "float32": peak / 2}),
        memory=RESERVED * memory,
        memory_bandwidth=hbm * GB,
        link=link * GB,
        together=8,
        network=network * GB,
        in_turn=True,
        core=core,
        source=f"https://www.nvidia.com/en-us/data-center/{name.partition('-')[0]}",
    )


_AMPERE = """cuda_compute_capability { major: 8 minor: 0 }
  core_count: 108
  fpus_per_core: 64
  clock_rate_ghz: 1.41
  l2_cache_size: 41943040
  shared_memory_per_core: 167936
  shared_memory_per_block_optin: 166912"""
_HOPPER = """cuda_compute_capability { major: 9 minor: 0 feature_extension: ACCELERATED_FEATURES }
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  l2_cache_size: 52428800
  shared_memory_per_core: 233472
  shared_memory_per_block_optin: 232448"""
_A100 = {"link": 300, "network": 25}
_H100 = {"link": 450, "network": 50}
CHIPS: Mapping[str, Chip] = MappingProxyType(
    {
        chip.name: chip
        for chip in (
            _tpu("v4", "TPU v4", gib=30.75, hbm=1228, link=45, network=0, axes=3),
            _tpu("v5e", "TPU v5 lite", gib=15.75, hbm=819, link=45, network=3.125, axes=2),
            _tpu("v5p", "TPU v5p", "TPU v5", gib=95.74, hbm=2765, link=90, network=6.25, axes=3),
            _tpu("v6e", "TPU v6 lite", gib=31.25, hbm=1638, link=90, network=12.5, axes=2),
            _gpu("a100", "NVIDIA A100-SXM4-80GB", _AMPERE, memory=85_100_068_864, hbm=2039, **_A100),
            _gpu("a100-40gb", "NVIDIA A100-SXM4-40GB", _AMPERE, memory=42_331_013_120, hbm=1555, **_A100),
            _gpu("h100", "NVIDIA H100 80GB HBM3", _HOPPER, memory=84_942_979_072, hbm=3350, **_H100),
            _gpu("h200", "NVIDIA H200", _HOPPER, memory=151_397_597_184, hbm=4800, **_H100),
        )
    }
)
"""Peaks are from the product pages, without sparsity. The memory of a TPU is the limit up to which its compiler (libtpu
0.0.42.1) accepts programs. The memory of a GPU is `RESERVED` of what XLA lists (`gpu_description`). TPU
links are from the scaling book, nine tenths of the product page's. The network is the machine's, divided by its chips:
2 x 100 Gbit/s for 8 v5e, 50 Gbit/s for a v5p, 4 x 200 Gbit/s for 8 v6e, 200 and 400 Gbit/s for each GPU of a DGX A100
and H100. GPUs on PCIe cards and partitions of GPUs are not included."""


def of_device(kind: str) -> Chip | None:
    """Return the chip of a JAX device kind, such as "TPU v5 lite"; None if it is not in the table."""
    return next((chip for chip in CHIPS.values() if kind in chip.kinds), None)


def gpu_description(chip: Chip) -> str:
    """Return XLA's description of a GPU, with which its compiler needs no GPU: the text of a `GpuTargetConfigProto`.

    Its numbers are XLA's own (openxla/xla, xla/backends/gpu/target_config/specs), with the memory of `CHIPS`, for CUDA
    13.0 and cuDNN 9.10. XLA works without the fields that it omits.
    """
    return f"""
gpu_device_info {{
  {chip.core}
  memory_bandwidth: {int(chip.memory_bandwidth)}
  device_memory_size: {int(chip.memory / RESERVED)}
  shared_memory_per_block: 49152
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
