"""The reference of all commands and their flags: docs/commands.md."""

import importlib
import textwrap
from collections.abc import Iterator

from convs2s_jax.commands import convs2s, export_fairseq, scale
from convs2s_jax.commands.convs2s import Entry
from convs2s_jax.core.command_line import Command, Group, default_text, usage
from convs2s_jax.core.fields import Field

HEAD = """# Every command and every flag

Usage: `convs2s COMMAND --flag=value`. `convs2s-train` and `convs2s-decode` are the same as `convs2s train` and
`convs2s decode`, and so are `python train.py` and `python decode.py` in a checkout. `--help` prints the same
descriptions. Configuration fields are flags too, as in `--config.model.dropout=0.3`;
[configuration.md](configuration.md) lists them.

This page is generated from the source. Regenerate it after a change there:
`python -m convs2s_jax.commands.command_reference > docs/commands.md`.
"""
WIDTH = 150


def text() -> str:
    """Return the whole reference in Markdown."""
    return "\n".join([HEAD, *(_section(name, summary, command) for name, summary, command in commands())])


def commands() -> Iterator[tuple[str, str, Command]]:
    """Yield (name, summary, command) for each command, including the actions of `scale` and both kinds of `export`."""
    for name, entry in convs2s.COMMANDS.items():
        if name == "scale":
            for action, inner in scale.ACTIONS.items():
                yield f"scale {action}", inner.summary, _command(inner)
        else:
            yield name, entry.summary, _command(entry)
    yield "export --output=FILE.pt", "export a checkpoint that fairseq loads", export_fairseq.COMMAND


def _command(entry: Entry) -> Command:
    return importlib.import_module(f"convs2s_jax.commands.{entry.module}").COMMAND


def _section(name: str, summary: str, command: Command) -> str:
    """Return the section of a command: its summary, its `--help` up to the flags, and the flags."""
    about = command.about.strip().format(program=f"convs2s {name.partition(' --')[0]}")
    parts = [f"## convs2s {name}", "", f"{summary[0].upper()}{summary[1:]}.", "", "```text", about, "```", ""]
    return "\n".join([*parts, *(_group(group) for group in command.groups)])


def _group(group: Group) -> str:
    lines = [_entry(field, group) for field in group.fields]
    return "\n".join([f"**{group.title}**", "", *lines, ""])


def _entry(field: Field, group: Group) -> str:
    """Return a flag's usage, default and description."""
    description = field.text.replace("<", "\\<")  # Markdown reads <unk> as a tag
    content = f"* `{usage(field)}`{default_text(field, group).replace('  ', ' ')}: {description}"
    return textwrap.fill(content, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    print(text(), end="")  # noqa: T201
