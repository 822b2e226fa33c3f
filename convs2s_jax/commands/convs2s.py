"""The `convs2s` command and its sub-commands: `convs2s train`, `convs2s decode` and so on."""

import importlib
import importlib.metadata
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from convs2s_jax.core.errors import UserError, did_you_mean
from convs2s_jax.core.guard import ended_by_signals, guard


class Entry(NamedTuple):
    """A sub-command.

    Attributes:
      summary: what it does.
      module: name of a module in `convs2s_jax.commands`, which is imported only when it is used.
      name: of its `Command`, or of a function that takes the arguments.
    """

    summary: str
    module: str
    name: str = "COMMAND"

    @property
    def command(self) -> Any:
        """The command or function."""
        return getattr(importlib.import_module(f"convs2s_jax.commands.{self.module}"), self.name)

    def run(self, arguments: Sequence[str]) -> None:
        """Run it. `arguments` are like `sys.argv`."""
        with ended_by_signals():
            command = self.command
            from convs2s_jax.core import command_line
        command(arguments) if callable(command) else command_line.run(command, arguments)


COMMANDS: Mapping[str, Entry] = MappingProxyType(
    {
        "train": Entry("train a model, or continue a run", "train"),
        "prepare": Entry("learn vocabularies and tokenise text before training uses devices", "train", "PREPARE"),
        "decode": Entry("translate or label text with a trained model", "decode"),
        "serve": Entry("serve translations over HTTP", "models", "SERVE"),
        "report": Entry("write an HTML page with curves, translations and attention of runs", "models", "REPORT"),
        "attention": Entry("draw the attention of each decoder layer", "models", "ATTENTION"),
        "shortlist": Entry("list likely target words for faster decoding", "models", "SHORTLIST"),
        "average": Entry("average several checkpoints into a new workdir", "models", "AVERAGE"),
        "import": Entry("import a fairseq checkpoint as a workdir", "models", "IMPORT"),
        "export": Entry("export compiled programs for other machines, or a fairseq checkpoint", "models", "EXPORT"),
        "scale": Entry("plan and check how training scales over devices", "scale", "console"),
        "config": Entry("list and print configurations and their fields", "config"),
    }
)


def console() -> None:
    """The console entry point `convs2s`."""
    if sys.argv[1:] == ["--version"]:
        versions = (f"{name} {importlib.metadata.version(name)}" for name in ("convs2s_jax", "jax"))
        guard(lambda: print(", ".join(versions)), program="convs2s")  # noqa: T201
        return
    start(sys.argv, COMMANDS, about="Convolutional sequence to sequence learning", usage="convs2s COMMAND")


def start(arguments: Sequence[str], entries: Mapping[str, Entry], *, about: str, usage: str) -> None:
    """Run the sub-command that the first argument names, or print their list.

    Args:
      arguments: like `sys.argv`.
      entries: the sub-commands.
      about: heading of the list.
      usage: how to run one; the last word is also what messages call it.
    """
    program, *rest = arguments
    program = Path(program).name
    name, *others = rest or ["--help"]
    if name in ("-h", "-help", "--help", "help"):
        guard(lambda: print(help_text(entries, about, usage)), program=program)  # noqa: T201
        return
    guard(lambda: _check(name, entries, usage.split()[-1].lower()), program=program)
    entries[name].run([f"{program} {name}", *others])


def help_text(entries: Mapping[str, Entry], about: str, usage: str) -> str:
    """Return the list of sub-commands."""
    lines = [f"{about}: {usage} [--flag=value ...]", ""]
    lines += [f"  {name:9} {entry.summary}" for name, entry in entries.items()]
    return "\n".join([*lines, "", f"Run {usage} --help for its flags."])


def train() -> None:
    """The console entry point `convs2s-train`."""
    COMMANDS["train"].run(sys.argv)


def decode() -> None:
    """The console entry point `convs2s-decode`."""
    COMMANDS["decode"].run(sys.argv)


def _check(name: str, entries: Mapping[str, Entry], what: str) -> None:
    if name not in entries:
        raise UserError(f"unknown {what} '{name}'{did_you_mean(name, entries)}")
