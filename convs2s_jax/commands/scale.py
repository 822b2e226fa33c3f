"""`convs2s scale plan|check|doctor`: plan and measure how training scales."""

import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from convs2s_jax.commands.convs2s import Entry, start

ACTIONS: Mapping[str, Entry] = MappingProxyType(
    {
        "plan": Entry(
            "estimate an update on devices that need not be attached: memory, communication, a time bound", "scale_plan"
        ),
        "check": Entry("run updates on the local devices and compare them with their plan", "scale_check"),
        "doctor": Entry("report what each process sees: devices, versions, clock, files, bandwidth", "scale_doctor"),
    }
)


def console(arguments: Sequence[str] | None = None) -> None:
    """Run the sub-command. `arguments` are like `sys.argv`; None for those of this process."""
    given = sys.argv if arguments is None else arguments
    start(given, ACTIONS, about="Plan and measure scaling (docs/scaling.md)", usage="convs2s scale ACTION")
