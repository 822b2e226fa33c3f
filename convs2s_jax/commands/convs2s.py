"""The `convs2s` command and its sub-commands: `convs2s train`, `convs2s decode` and so on."""

import importlib
import importlib.metadata
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from convs2s_jax.core.errors import UserError, did_you_mean
from convs2s_jax.core.guard import ended_by_signals, guard

if TYPE_CHECKING:
    from convs2s_jax.core.command_line import Command

HELP = ("-h", "-help", "--help", "help")


class Entry(NamedTuple):
    """A sub-command.

    Attributes:
      summary: what it does.
      module: name of a module in `convs2s_jax.commands`, which is imported only when it is used.
      name: of its `Command`.
    """

    summary: str
    module: str
    name: str = "COMMAND"

    @property
    def command(self) -> "Command":
        """The command."""
        found: Command = getattr(importlib.import_module(f"convs2s_jax.commands.{self.module}"), self.name)
        return found

    def run(self, arguments: Sequence[str]) -> None:
        """Run it. `arguments` are like `sys.argv`."""
        with ended_by_signals():
            command = self.command
            from convs2s_jax.core import command_line
        command_line.run(command, arguments)


COMMANDS: Mapping[str, Entry] = MappingProxyType(
    {
        "train": Entry("train a model, or continue a run", "train"),
        "prepare": Entry("learn vocabularies and tokenise text before training uses devices", "train", "PREPARE"),
        "decode": Entry("translate or label text with a trained model", "decode"),
        "merge": Entry("join the parts of a decoded text", "decode", "MERGE"),
        "serve": Entry("serve translations over HTTP", "models", "SERVE"),
        "report": Entry("write an HTML page with curves, translations and attention of runs", "models", "REPORT"),
        "shortlist": Entry("list likely target words for faster decoding", "models", "SHORTLIST"),
        "average": Entry("average several checkpoints into a new workdir", "models", "AVERAGE"),
        "import": Entry("import a fairseq checkpoint as a workdir", "models", "IMPORT"),
        "export": Entry("export compiled programs for other machines, or a fairseq checkpoint", "models", "EXPORT"),
        "data report": Entry("count and show the training pairs that filters leave out", "train", "DATA"),
        "scale plan": Entry(
            "estimate an update on devices that need not be attached: memory, communication, a time bound",
            "scale",
            "PLAN",
        ),
        "scale check": Entry("run updates on the local devices and compare them with their plan", "scale", "CHECK"),
        "scale doctor": Entry("report what each process sees: devices, versions, clock, bandwidth", "scale", "DOCTOR"),
        "config": Entry("list and print configurations and their fields", "config"),
    }
)


def console() -> None:
    """The console entry point `convs2s`: run the sub-command that the arguments name, or print their list."""
    program, rest = Path(sys.argv[0]).name, sys.argv[1:]
    words = 2 if rest[:1] in (["scale"], ["data"]) else 1
    name = " ".join(rest[:words])
    if rest == ["--version"]:
        versions = (f"{name} {importlib.metadata.version(name)}" for name in ("convs2s_jax", "jax"))
        guard(lambda: print(", ".join(versions)), program=program)  # noqa: T201
    elif len(rest) < words or rest[words - 1] in HELP:
        guard(lambda: print(help_text()), program=program)  # noqa: T201
    else:
        guard(lambda: _check(name), program=program)
        COMMANDS[name].run([f"{program} {name}", *rest[words:]])


def help_text() -> str:
    """Return the list of sub-commands."""
    lines = ["Convolutional sequence to sequence learning: convs2s COMMAND [--flag=value ...]", ""]
    lines += [f"  {name:13} {entry.summary}" for name, entry in COMMANDS.items()]
    return "\n".join([*lines, "", "Run convs2s COMMAND --help for its flags."])


def train() -> None:
    """The console entry point `convs2s-train`."""
    COMMANDS["train"].run(sys.argv)


def decode() -> None:
    """The console entry point `convs2s-decode`."""
    COMMANDS["decode"].run(sys.argv)


def _check(name: str) -> None:
    if name not in COMMANDS:
        raise UserError(f"unknown command '{name}'{did_you_mean(name, COMMANDS)}")
