"""`convs2s scale check`: run updates on the local devices and compare them with their plan."""

import dataclasses
import os
from dataclasses import dataclass
from typing import Any

from convs2s_jax.commands.scale_batches import Batches, check_json, write_json
from convs2s_jax.commands.shared import leave, read_config
from convs2s_jax.core import command_line
from convs2s_jax.core.command_line import Command, Group, Overrides
from convs2s_jax.core.config import check, to_dict
from convs2s_jax.core.guard import SMALLER_BATCHES, ended_by_signals
from convs2s_jax.training.run.processes.options import Processes, from_environment

ABOUT = """
Run updates on the local devices, and print the plan next to the measurements:

  {program} --config=NAME [--steps=20] [--devices=8] [--config.mesh.fsdp=2 ...] [--json=FILE]

Rates of devices without table entries, such as CPUs, are measured first. Compilation is not part of a step.
"""


@dataclass(frozen=True, kw_only=True)
class CheckOptions:
    """What to run.

    Attributes:
      config: name of a configuration that comes with the package, or path or address of a file.
      steps: number of updates to measure for each shape.
      devices: number of devices to use; default: all. On CPU, this many virtual devices are created.
      json: JSON file for the plan and the measurements.
    """

    config: str = ""
    steps: int = 20
    devices: int | None = None
    json: str = ""

    def __post_init__(self) -> None:
        check(self.config != "", "--config is missing, as in --config=cldr_en_de")
        check(self.steps >= 2, f"--steps={self.steps}: one update has no spread; use 2 or more")
        check(self.devices is None or self.devices >= 1, f"--devices={self.devices}: use 1 or more")


def main(values: dict[str, Any], overrides: Overrides) -> None:
    """Plan, run, and print both."""
    options = command_line.options_of(CheckOptions, values)
    batches = command_line.options_of(Batches, values)
    given = from_environment(command_line.options_of(Processes, values), dict(os.environ))
    cfg = read_config(options.config, overrides)
    with ended_by_signals():
        from convs2s_jax.scaling import check as checking
        from convs2s_jax.scaling import plan, tables, topology
        from convs2s_jax.training.run.checkpoints.digest import digest_of_record
        from convs2s_jax.training.run.processes import distributed, joining

    if options.devices and given.num_processes is None:
        topology.reserve(options.devices)
    flags = {"config": to_dict(cfg), "batches": dataclasses.asdict(batches), "steps": options.steps}
    with joining.together(given):
        distributed.agree("configuration, batch or number of steps", digest_of_record(flags))
        distributed.primary_only("checked", lambda: check_json(options.json))
        devices = checking.attached_topology(options.devices)
        made = plan.make(cfg, devices, **batches.given())
        check(not made.refused, f"the update does not fit: {made.refused}")
        found = checking.measure(made, cfg, devices, steps=options.steps)
    if distributed.is_primary():
        print(f"{tables.of_plan(made)}\n\n{tables.of_check(found, options.steps)}")  # noqa: T201
        measured = [
            {**each._asdict(), "median": each.median, "spread": each.spread, "error": each.error} for each in found
        ]
        write_json(options.json, {**plan.as_json(made), "measured": measured})


COMMAND = Command(
    about=ABOUT,
    groups=(Group("Options", CheckOptions), Group("Batches", Batches), Group("Several processes", Processes)),
    main=main,
    own_signals=True,
    leave=leave,
    stores=("config",),
    memory=SMALLER_BATCHES,
)
