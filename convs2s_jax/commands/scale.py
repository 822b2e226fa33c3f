"""`convs2s scale plan`, `check` and `doctor`: plan and measure how training scales (docs/scaling.md)."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from convs2s_jax.commands.shared import leave, read_config, tell
from convs2s_jax.core import command_line, files
from convs2s_jax.core.command_line import Command, Group, Overrides
from convs2s_jax.core.config import check, to_dict
from convs2s_jax.core.errors import UserError, counted, shown
from convs2s_jax.core.guard import SMALLER_BATCHES, ended_by_signals
from convs2s_jax.training.run.processes.options import Processes, from_environment


@dataclass(frozen=True, kw_only=True)
class Batches:
    """The batches of an update, and the vocabularies that determine its softmax layer.

    Attributes:
      lengths: source and target lengths in tokens, one number for both or two as in 24x32. Each is one batch shape. The
        shape that a run logs as 64 x (24, 32), with 64 rows, is 24x32 here.
      tokens: token budget of a batch over all chips, in place of data.batch.tokens.
      tokens_per_chip: token budget of each shard of the rows, in place of one for all chips.
      vocabulary: size of both vocabularies, in place of those of the configuration.
      labels: number of a classifier's labels; required to plan a classifier.
    """

    lengths: tuple[str, ...] = ("64",)
    tokens: int | None = None
    tokens_per_chip: int | None = None
    vocabulary: int | None = None
    labels: int | None = None

    def __post_init__(self) -> None:
        check(len(self.lengths) > 0, "--lengths is empty: use one or more lengths, as in --lengths=16,32,64")
        for each in self.lengths:
            readable = re.fullmatch("[0-9]{1,9}(x[0-9]{1,9})?", each) is not None
            check(readable, f"--lengths contains {shown(each)}: use a number of tokens, or SOURCExTARGET as in 24x32")
        check(
            self.tokens is None or self.tokens_per_chip is None,
            "--tokens with --tokens_per_chip: one is for all chips together, the other for each; use one of them",
        )
        for name, least in (("tokens", 2), ("tokens_per_chip", 2), ("vocabulary", 5), ("labels", 2)):
            value = getattr(self, name)
            check(value is None or value >= least, f"--{name}={value}: use {least} or more")
            check(value is None or value < 2**31, f"--{name}={value}: use less than {2**31}")

    def given(self) -> dict[str, Any]:
        """Return the arguments of `scaling.plan.make` that describe the batches, with lengths as numbers or pairs."""
        split = [tuple(map(int, each.split("x"))) for each in self.lengths]
        lengths = [each if len(each) == 2 else each[0] for each in split]
        return {**asdict(self), "lengths": lengths}


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


def plan(values: dict[str, Any], overrides: Overrides) -> None:
    """Make the plan, print it, and write it to --json."""
    options = command_line.options_of(PlanOptions, values)
    batches = command_line.options_of(Batches, values)
    cfg = read_config(options.config, overrides)
    with ended_by_signals():
        from convs2s_jax.scaling import plan as planning
        from convs2s_jax.scaling import tables, topology

    _check_json(options.json)
    topology.only_compile(os.environ)
    devices = topology.named(options.topology, slices=options.slices)
    made = planning.make(cfg, devices, tell=tell, **batches.given())
    print(tables.of_plan(made))  # noqa: T201
    _write_json(options.json, planning.as_json(made))


def check_plan(values: dict[str, Any], overrides: Overrides) -> None:
    """Plan, run, and print both."""
    options = command_line.options_of(CheckOptions, values)
    batches = command_line.options_of(Batches, values)
    given = from_environment(command_line.options_of(Processes, values), dict(os.environ))
    cfg = read_config(options.config, overrides)
    with ended_by_signals():
        from convs2s_jax.scaling import check as checking
        from convs2s_jax.scaling import plan as planning
        from convs2s_jax.scaling import tables, topology
        from convs2s_jax.training.run.processes import distributed, joining

    if options.devices and given.num_processes is None:
        topology.reserve(options.devices)
    flags = {"config": to_dict(cfg), "batches": asdict(batches), "steps": options.steps}
    with joining.together(given):
        distributed.agree("configuration, batch or number of steps", flags)
        distributed.primary_only("checked", lambda: _check_json(options.json))
        devices = checking.attached_topology(options.devices)
        made = planning.make(cfg, devices, **batches.given())
        check(not made.refused, f"the update does not fit: {made.refused}")
        found = checking.measure(made, cfg, devices, steps=options.steps)
    if distributed.is_primary():
        print(f"{tables.of_plan(made)}\n\n{tables.of_check(found, options.steps)}")  # noqa: T201
        measured = [
            {**each._asdict(), "median": each.median, "spread": each.spread, "error": each.error} for each in found
        ]
        _write_json(options.json, {**planning.as_json(made), "measured": measured})


def doctor(values: dict[str, Any], overrides: Overrides) -> None:
    """Gather what all processes see, and print it on process 0."""
    check(not overrides, "--config.*: the doctor reads no configuration; remove these flags")
    given = from_environment(command_line.options_of(Processes, values), dict(os.environ))
    with ended_by_signals():
        import jax

        from convs2s_jax.scaling import doctor as checks
        from convs2s_jax.training.run.processes import distributed, joining

    with joining.together(given):
        own = json.dumps(checks.facts())
        seen = [json.loads(line) for line in distributed.collect([own], jax.process_count(), name="facts")]
        found = [*checks.findings(seen), checks.Finding(checks.exchange())]
    wrong = [finding.sentence for finding in found if finding.wrong]
    if distributed.is_primary():
        print("\n".join(("WRONG: " if finding.wrong else "") + finding.sentence for finding in found))  # noqa: T201
    if wrong:
        raise UserError(f"{counted(len(wrong), 'problem')} found: {wrong[0]}")


def _check_json(name: str) -> None:
    """Raise UserError early if --json is set to a file of a run or cannot be written: a plan takes minutes."""
    with ended_by_signals():
        from convs2s_jax.training.run import outputs

    outputs.check_outside_runs(name, "--json")
    if name:
        with files.writing(f"--json={name}", "choose another file"):
            files.check_replaceable(Path(name))


def _write_json(name: str, values: Mapping[str, Any]) -> None:
    """Write the file of --json, if set."""
    if name:
        files.replace_file(Path(name), json.dumps(values, indent=1) + "\n")


PLAN = Command(
    about="""
Compile an update for devices that need not be attached, and print what it costs:

  {program} --config=NAME --topology=v5e:16x16 [--config.mesh.fsdp=16 ...] [--json=FILE]

Planning for TPUs requires libtpu (pip install '.[plan]') and for GPUs their compiler (pip install '.[plan-gpu]'), but
no TPU or GPU. docs/scaling.md explains the table.
""",
    groups=(Group("Options", PlanOptions), Group("Batches", Batches)),
    main=plan,
    stores=("config",),
)
CHECK = Command(
    about="""
Run updates on the local devices, and print the plan next to the measurements:

  {program} --config=NAME [--steps=20] [--devices=8] [--config.mesh.fsdp=2 ...] [--json=FILE]

Rates of devices without table entries, such as CPUs, are measured first. Compilation is not part of a step.
""",
    groups=(Group("Options", CheckOptions), Group("Batches", Batches), Group("Several processes", Processes)),
    main=check_plan,
    own_signals=True,
    leave=leave,
    stores=("config",),
    memory=SMALLER_BATCHES,
)
DOCTOR = Command(
    about="""
Report what each process sees before a long run: devices, versions, clock, bandwidth.

  {program} [--distributed | --coordinator_address=HOST:PORT --num_processes=N --process_id=I]

Run it on all machines. It exits with status 2 if something is wrong. Training itself compares configuration, data and
workdir before its first update.
""",
    groups=(Group("Several processes", Processes),),
    main=doctor,
    own_signals=True,
    leave=leave,
)
