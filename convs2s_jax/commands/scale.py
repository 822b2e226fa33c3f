"""The command of the scaling lab: `convs2s scale plan|sweep|check|doctor`."""

import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from convs2s_jax.core.errors import UserError, did_you_mean
from convs2s_jax.core.guard import guard

ACTIONS: Mapping[str, str] = MappingProxyType(
    {
        "plan": "what an update costs on devices that need not be here: memory, exchanges, a bound of its time",
        "sweep": "plans of many meshes, batches and devices, as a table and figures",
        "check": "updates on the devices at hand, measured beside their plan",
        "doctor": "what each process sees: devices, versions, clock, files, bandwidth",
    }
)
"""Each is a module `convs2s_jax.commands.scale_NAME`, imported only when used."""


def help_text() -> str:
    """What `convs2s scale --help` prints."""
    lines = ["Scaling, planned and measured (docs/scaling.md): convs2s scale ACTION [--flag=value ...]", ""]
    lines += [f"  {name:9} {summary}" for name, summary in ACTIONS.items()]
    return "\n".join([*lines, "", "convs2s scale ACTION --help describes an action and its flags."])


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
        raise UserError(f"the action is '{name}'{did_you_mean(name, ACTIONS)}")
