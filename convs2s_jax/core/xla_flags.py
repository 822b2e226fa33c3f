"""Named sets of XLA flags, which XLA reads from the environment when it starts.

These flags are commonly set for training on many devices. Their effect here was not measured on an accelerator.
"""

import shlex
from collections.abc import Mapping, MutableMapping
from types import MappingProxyType
from typing import Literal, NamedTuple

Name = Literal["none", "tpu", "gpu"]
"""Name of a set."""


class Flags(NamedTuple):
    """A set of flags.

    Attributes:
      variable: environment variable. TPU flags belong to libtpu; XLA exits on flags in XLA_FLAGS that it does not know.
      flags: flag -> its value and purpose.
    """

    variable: str
    flags: Mapping[str, tuple[str, str]]


SETS: Mapping[Name, Flags] = MappingProxyType(
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


def add(name: Name, environment: MutableMapping[str, str]) -> None:
    """Add a set to the variables of the process. Flags that are already set stay unchanged.

    XLA reads the flags once, so call this before the first use of a device.
    """
    variable, flags = SETS[name]
    given = environment.get(variable, "")
    known = {word.lstrip("-").partition("=")[0] for word in given.split()}
    added = [f"--{flag}={value}" for flag, (value, _) in flags.items() if flag not in known]
    if added:
        environment[variable] = " ".join([*given.split(), *added])


def describe(environment: Mapping[str, str]) -> str:
    """Return the variables with XLA flags, whoever set them, as written before a command; "" if none is set."""
    variables = dict.fromkeys(flags.variable for flags in SETS.values())
    return " ".join(
        f"{name}={shlex.quote(environment[name])}" for name in variables if environment.get(name, "").strip()
    )
