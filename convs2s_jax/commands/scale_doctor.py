"""`convs2s scale doctor`: report what each process sees, in sentences."""

import json
import os
from typing import Any

from convs2s_jax.commands.shared import leave
from convs2s_jax.core import command_line
from convs2s_jax.core.command_line import Command, Group, Overrides
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError, counted
from convs2s_jax.core.guard import ended_by_signals
from convs2s_jax.training.run.processes.options import Processes, from_environment

ABOUT = """
Report what each process sees before a long run: devices, versions, clock, bandwidth.

  {program} [--distributed | --coordinator_address=HOST:PORT --num_processes=N --process_id=I]

Run it on all machines. It exits with status 2 if something is wrong. Training itself compares configuration, data and
workdir before its first update.
"""


def main(values: dict[str, Any], overrides: Overrides) -> None:
    """Gather what all processes see, and print it on process 0."""
    check(not overrides, "--config.*: the doctor reads no configuration; remove these flags")
    given = from_environment(command_line.options_of(Processes, values), dict(os.environ))
    with ended_by_signals():
        import jax

        from convs2s_jax.scaling import doctor
        from convs2s_jax.training.run.processes import distributed, joining

    with joining.together(given):
        own = json.dumps(doctor.facts())
        seen = [json.loads(line) for line in distributed.collect([own], jax.process_count(), name="facts")]
        found = [*doctor.findings(seen), doctor.Finding(doctor.exchange())]
    wrong = [finding.sentence for finding in found if finding.wrong]
    if distributed.is_primary():
        print("\n".join(("WRONG: " if finding.wrong else "") + finding.sentence for finding in found))  # noqa: T201
    if wrong:
        raise UserError(f"{counted(len(wrong), 'problem')} found: {wrong[0]}")


COMMAND = Command(
    about=ABOUT,
    groups=(Group("Several processes", Processes),),
    main=main,
    own_signals=True,
    leave=leave,
)
