"""`convs2s scale doctor`: report what each process sees, in sentences."""

import json
import os
from dataclasses import dataclass
from typing import Any

from convs2s_jax.commands.shared import leave, read_config
from convs2s_jax.core import command_line
from convs2s_jax.core.command_line import Command, Group, Overrides
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError, counted
from convs2s_jax.core.guard import ended_by_signals
from convs2s_jax.training.run.processes.options import Processes, from_environment

ABOUT = """
Report what each process sees before a long run: devices, versions, clock, workdir, data, bandwidth.

  {program} [--config=NAME] [--workdir=DIR] [--coordinator_address=HOST:PORT --num_processes=N --process_id=I]

Run it on all machines with the flags of the training run, including --distributed. It removes the files that it
creates in the workdir, unless a signal ends it. It exits with status 2 if something is wrong.
"""


@dataclass(frozen=True, kw_only=True)
class DoctorOptions:
    """What to check, in addition to devices and versions.

    Attributes:
      config: name, path or address of a configuration. Its data is read and compared between the processes.
      workdir: folder of a run, or its address (gs://BUCKET/NAME, s3://BUCKET/NAME), which all processes must be able to
        access.
    """

    config: str = ""
    workdir: str = ""


def main(values: dict[str, Any], overrides: Overrides) -> None:
    """Gather what all processes see, and print it on process 0."""
    options = command_line.options_of(DoctorOptions, values)
    check(bool(options.config) or not overrides, "--config.* without --config: add --config=NAME")
    given = from_environment(command_line.options_of(Processes, values), dict(os.environ))
    cfg = read_config(options.config, overrides) if options.config else None
    with ended_by_signals():
        import jax

        from convs2s_jax.scaling import doctor
        from convs2s_jax.training.run.checkpoints.digest import digest_of_record
        from convs2s_jax.training.run.processes import distributed, joining

    flags = {"config": bool(cfg), "workdir": bool(options.workdir)}
    with joining.together(given):
        distributed.agree("set of flags", digest_of_record(flags), remedy="set --config and --workdir for all or none")
        own = json.dumps(doctor.facts(cfg, options.workdir))
        seen = [json.loads(line) for line in distributed.collect([own], jax.process_count(), name="facts")]
        found = [*doctor.findings(seen), doctor.Finding(doctor.exchange())]
    wrong = [finding.sentence for finding in found if finding.wrong]
    if distributed.is_primary():
        print("\n".join(("WRONG: " if finding.wrong else "") + finding.sentence for finding in found))  # noqa: T201
    if wrong:
        raise UserError(f"{counted(len(wrong), 'problem')} found: {wrong[0]}")


COMMAND = Command(
    about=ABOUT,
    groups=(Group("Options", DoctorOptions), Group("Several processes", Processes)),
    main=main,
    own_signals=True,
    leave=leave,
    stores=("config", "workdir"),
)
