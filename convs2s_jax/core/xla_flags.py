"""Named sets of flags for XLA, which it reads from the environment when it starts.

They are flags that trainings on many devices commonly set. What they gain here was not measured on an accelerator.
"""

import shlex
from collections.abc import Mapping, MutableMapping
from types import MappingProxyType
from typing import Literal, NamedTuple

Name = Literal["none", "tpu", "gpu"]
"""Name of a set."""


class Flags(NamedTuple):
    """A set.

    Attributes:
      variable: of the environment. TPU's flags are libtpu's: in XLA_FLAGS, XLA ends a process that does not know one.
      flags: flag -> its value and what it is for.
    """

    variable: str
    flags: Mapping[str, tuple[str, str]]


SETS: Mapping[Name, Flags] = MappingProxyType(
    {
        "none": Flags("XLA_FLAGS", {}),
        "tpu": Flags(
            "LIBTPU_INIT_ARGS",
            {
                "xla_tpu_enable_async_collective_fusion": ("true", "exchange arrays while other operations run"),
                "xla_tpu_enable_async_collective_fusion_fuse_all_gather": ("true", "so for gathered parameters (fsdp)"),
                "xla_tpu_enable_async_collective_fusion_multiple_steps": ("true", "an exchange may span operations"),
                "xla_tpu_overlap_compute_collective_tc": ("true", "let the matrix unit work during exchanges"),
                "xla_enable_async_all_gather": ("true", "begin to gather before the result is needed"),
                "xla_tpu_enable_data_parallel_all_reduce_opt": ("true", "sum gradients while others are computed"),
                "xla_tpu_data_parallel_opt_different_sized_ops": ("true", "so for arrays of different sizes"),
            },
        ),
        "gpu": Flags(
            "XLA_FLAGS",
            {
                "xla_gpu_enable_latency_hiding_scheduler": ("true", "order operations so that exchanges overlap them"),
                "xla_gpu_enable_pipelined_all_gather": ("true", "gather for the next turn of a loop (fsdp)"),
                "xla_gpu_enable_pipelined_reduce_scatter": ("true", "sum and cut in the next turn of a loop (fsdp)"),
                "xla_gpu_enable_pipelined_all_reduce": ("true", "sum in the next turn of a loop"),
                "xla_gpu_all_reduce_combine_threshold_bytes": ("134217728", "sum small gradients together"),
            },
        ),
    }
)


def add(name: Name, environment: MutableMapping[str, str]) -> None:
    """Add a set to the environment. Flags that are there already stay as they are.

    XLA reads them once, so this has to come before the first use of a device.

    Args:
      name: of the set.
      environment: variables of the process, which are changed.
    """
    variable, flags = SETS[name]
    given = environment.get(variable, "")
    known = {word.lstrip("-").partition("=")[0] for word in given.split()}
    added = [f"--{flag}={value}" for flag, (value, _) in flags.items() if flag not in known]
    if added:
        environment[variable] = " ".join([*given.split(), *added])


def describe(environment: Mapping[str, str]) -> str:
    """The variables with flags of XLA, whoever set them, as they are written before a command; "" where none is set."""
    variables = dict.fromkeys(flags.variable for flags in SETS.values())
    return " ".join(
        f"{name}={shlex.quote(environment[name])}" for name in variables if environment.get(name, "").strip()
    )
