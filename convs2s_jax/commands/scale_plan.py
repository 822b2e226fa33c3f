"""`convs2s scale plan`: compile an update for devices that need not be attached."""

import os
from dataclasses import dataclass
from typing import Any

from convs2s_jax.commands.scale_batches import Batches, check_json, write_json
from convs2s_jax.commands.shared import read_config, tell
from convs2s_jax.core import command_line
from convs2s_jax.core.command_line import Command, Group, Overrides
from convs2s_jax.core.config import check
from convs2s_jax.core.guard import ended_by_signals

ABOUT = """
Compile an update for devices that need not be attached, and print what it costs:

  {program} --config=NAME --topology=v5e:16x16 [--config.mesh.fsdp=16 ...] [--json=FILE]

Planning for TPUs requires libtpu (pip install '.[plan]') and for GPUs their compiler (pip install '.[plan-gpu]'), but
no TPU or GPU. docs/scaling.md explains the table.
"""


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What to plan.

    Attributes:
      config: name of a configuration that comes with the package, or path or address of a file.
      topology: CHIP:SHAPE for TPUs (v5e:16x16, v5p:4x4x4), CHIP:NUMBER for GPUs (h100:8), or cpu:NUMBER.
      slices: number of TPU slices of this topology.
      json: JSON file for the plan.
    """

    config: str = ""
    topology: str = ""
    slices: int = 1
    json: str = ""

    def __post_init__(self) -> None:
        check(self.config != "", "--config is missing, as in --config=paper_wmt14_en_de")
        check(self.topology != "", "--topology is missing, as in --topology=v5e:4x4 or --topology=h100:8")


def main(values: dict[str, Any], overrides: Overrides) -> None:
    """Make the plan, print it, and write it to --json."""
    options = command_line.options_of(PlanOptions, values)
    batches = command_line.options_of(Batches, values)
    cfg = read_config(options.config, overrides)
    with ended_by_signals():
        from convs2s_jax.scaling import plan, tables, topology

    check_json(options.json)
    topology.only_compile(os.environ)
    devices = topology.named(options.topology, slices=options.slices)
    made = plan.make(cfg, devices, tell=tell, **batches.given())
    print(tables.of_plan(made))  # noqa: T201
    write_json(options.json, plan.as_json(made))


COMMAND = Command(
    about=ABOUT,
    groups=(Group("Options", PlanOptions), Group("Batches", Batches)),
    main=main,
    stores=("config",),
)
