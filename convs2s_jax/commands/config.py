"""The command that shows configurations: `convs2s config`."""

import ast
import json
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from convs2s_jax.commands import reference
from convs2s_jax.core import command_line, presets
from convs2s_jax.core.command_line import Command, Group, Overrides
from convs2s_jax.core.config import build, check, to_dict
from convs2s_jax.training.run.config import Config

ABOUT = """
Show configurations:

  {program} [--config=NAME [--source] [--config.path.to.field=value ...]] [--reference]

Without a flag it lists the configurations that come with the package.
"""


@dataclass(frozen=True, kw_only=True)
class ConfigOptions:
    """The flags of `convs2s config`.

    Attributes:
      config: print this configuration as JSON with every field, as a run writes it into its workdir.
      source: print the Python file of that configuration instead, to be saved and edited.
      reference: print every field with its type, default and description, in Markdown (docs/configuration.md).
    """

    config: str = ""
    source: bool = False
    reference: bool = False

    def __post_init__(self) -> None:
        check(not self.source or self.config != "", "--source without --config: name a configuration")
        check(not (self.reference and self.config), "--reference with --config: it is of all configurations; drop one")


def main(values: dict[str, Any], overrides: Overrides) -> None:
    """Print what the flags ask for."""
    options = command_line.options_of(ConfigOptions, values)
    check(
        not overrides or (options.config != "" and not options.source),
        f"--config.{overrides[0][0] if overrides else ''}: there is no configuration to put it in; give --config=NAME",
    )
    print(_shown(options, overrides), end="")  # noqa: T201


def _shown(options: ConfigOptions, overrides: Overrides) -> str:
    if options.reference:
        return reference.text()
    if options.source:
        return presets.read(options.config)
    if options.config:
        cfg = build(Config, command_line.read_config(options.config, overrides))
        return json.dumps(to_dict(cfg), indent=2) + "\n"
    return "".join(f"{name:30} {_subject(name)}\n" for name in presets.names())


def _subject(name: str) -> str:
    """The beginning of the first sentence in a configuration file's head, after its command."""
    head = ast.get_docstring(ast.parse(presets.read(name))) or ""
    _, _, rest = head.partition("\n\n")
    sentence = re.split(r"\.(?: (?=[A-Z])|$)", " ".join(rest.split()))[0]
    return textwrap.shorten(sentence, 100, placeholder=" ...")


COMMAND = Command(about=ABOUT, groups=(Group("Options", ConfigOptions),), main=main)


def console(arguments: Sequence[str] | None = None) -> None:
    """Run the sub-command. `arguments` are like `sys.argv`; None for those of this process."""
    command_line.run(COMMAND, arguments=arguments)
