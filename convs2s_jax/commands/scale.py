"""`convs2s scale plan|sweep|check|doctor`: plan and measure how training scales."""

import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from convs2s_jax.core.errors import UserError, did_you_mean
from convs2s_jax.core.guard import guard

ACTIONS: Mapping[str, str] = MappingProxyType(
    {
        "plan": "estimate an update on devices that need not be attached: memory, communication, a time bound",
        "sweep": "plan many meshes, batches and devices, and write a table and figures",
        "check": "run updates on the local devices and compare them with their plan",
        "doctor": "report what each process sees: devices, versions, clock, files, bandwidth",
    }
)
"""Each action is a module `convs2s_jax.commands.scale_NAME`, imported only when used."""


def help_text() -> str:
    """Return the text of `convs2s scale --help`."""
    lines = ["Plan and measure scaling (docs/scaling.md): convs2s scale ACTION [--flag=value ...]", ""]
    lines += [f"  {name:9} {summary}" for name, summary in ACTIONS.items()]
    return "\n".join([*lines, "", "Run convs2s scale ACTION --help for an action's flags."])


def console(arguments: Sequence[str] | None = None) -> None:
    """Run the sub-command. `arguments` are like `sys.argv`; None for those of this process."""
    program, *rest = sys.argv if arguments is None else arguments
    program = Path(program).name
    if not rest or rest[0] in ("-h", "-help", "--help", "help"):
        guard(lambda: print(help_text()), program=program)  # noqa: T201
        return
    guard(lambda: _check(rest[0]), program=program)
    importlib.import_module(f"convs2s_jax.commands.scale_{rest[0]}").console([f"{program} {rest[0]}", *rest[1:]])


def _check(name: str) -> None:
    if name not in ACTIONS:
        raise UserError(f"unknown action '{name}'{did_you_mean(name, ACTIONS)}")
