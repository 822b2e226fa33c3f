"""The `convs2s` command and its sub-commands: `convs2s train`, `convs2s decode` and so on."""

import importlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from convs2s_jax.core.errors import UserError, did_you_mean
from convs2s_jax.core.guard import guard, quiet_imports


class Entry(NamedTuple):
    """A sub-command.

    Attributes:
      summary: what it does.
      module: name of a module in `convs2s_jax.commands` with a function `console`; imported only when used.
    """

    summary: str
    module: str


COMMANDS: Mapping[str, Entry] = MappingProxyType(
    {
        "train": Entry("train a model, or continue a run", "train"),
        "prepare": Entry("learn vocabularies and tokenise text before training uses devices", "prepare"),
        "decode": Entry("translate or label text with a trained model", "decode"),
        "serve": Entry("serve translations over HTTP", "serve"),
        "report": Entry("write an HTML page with curves, translations and attention of runs", "report"),
        "attention": Entry("draw the attention of each decoder layer", "attention"),
        "shortlist": Entry("list likely target words for faster decoding", "shortlist"),
        "average": Entry("average several checkpoints into a new workdir", "average"),
        "import": Entry("import a fairseq checkpoint as a workdir", "bridge"),
        "export": Entry("export compiled programs for other machines, or a fairseq checkpoint", "export"),
        "scale": Entry("plan, sweep and check how training scales over devices", "scale"),
        "config": Entry("list and print configurations and their fields", "config"),
    }
)


def help_text() -> str:
    """Return the text of `convs2s --help`."""
    lines = ["Convolutional sequence to sequence learning: convs2s COMMAND [--flag=value ...]", ""]
    lines += [f"  {name:9} {entry.summary}" for name, entry in COMMANDS.items()]
    return "\n".join([*lines, "", "Run convs2s COMMAND --help for a command's flags."])


def console() -> None:
    """The console entry point `convs2s`."""
    program, *arguments = sys.argv
    program = Path(program).name
    if not arguments or arguments[0] in ("-h", "-help", "--help", "help"):
        guard(lambda: print(help_text()), program=program)  # noqa: T201
        return
    name, *rest = arguments
    guard(lambda: _check(name), program=program)
    run(name, [f"{program} {name}", *rest])


def run(name: str, arguments: Sequence[str]) -> None:
    """Run a command.

    Args:
      name: of the command, such as train.
      arguments: like `sys.argv`.
    """
    with quiet_imports():
        module = importlib.import_module(f"convs2s_jax.commands.{COMMANDS[name].module}")
    module.console(arguments)


def train() -> None:
    """The console entry point `convs2s-train`."""
    run("train", sys.argv)


def decode() -> None:
    """The console entry point `convs2s-decode`."""
    run("decode", sys.argv)


def _check(name: str) -> None:
    if name not in COMMANDS:
        raise UserError(f"unknown command '{name}'{did_you_mean(name, COMMANDS)}")
