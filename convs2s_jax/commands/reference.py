"""The reference of all configuration fields and of all flags: docs/configuration.md and docs/commands.md.

`python -m convs2s_jax.commands.reference docs` writes both pages.
"""

import dataclasses
import re
import sys
import textwrap
import typing
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from convs2s_jax.commands.convs2s import COMMANDS
from convs2s_jax.commands.decode import SEARCH
from convs2s_jax.core.command_line import Command, default_text, usage
from convs2s_jax.core.config import to_dict
from convs2s_jax.core.fields import Field, fields_of, summary, type_text
from convs2s_jax.training.run.config import Config

FIELDS = """# Every field of the configuration

A configuration file returns these fields as nested dictionaries; on the command line each is a flag, as in
`--config.model.dropout=0.3`. The default stands after the name, or after the values that a field may have; `None` and
empty lists are not shown. `kind` chooses the kind of a record. `convs2s train --help=config` prints the descriptions in
full length. [commands.md](commands.md) lists the other flags. This page is generated from the source
([how](../CONTRIBUTING.md#documents)).
"""
FLAGS = """# Every command and every flag

`convs2s COMMAND --flag=value`; `--help` tells more. `convs2s-train` and `python train.py` are `convs2s train`,
`convs2s-decode` and `python decode.py` are `convs2s decode`. Configuration fields are flags too, as in
`--config.model.dropout=0.3` ([configuration.md](configuration.md)). This page is generated from the source.
"""
SEARCH_FLAGS = """**Search flags** of decode, serve, report and export override the run's own options. They are the
fields of [`search`](configuration.md#search)"""
WIDTH = 150


def text(*, brief: bool = False) -> str:
    """Return the reference of all fields in Markdown.

    Args:
      brief: only the first sentence of each description.
    """
    parts, known = [_wrapped(FIELDS), ""], dict[str, str]()
    for cls, paths in sections().items():
        title = _title(cls, paths)
        entries = {field.name: _entry(field, brief=brief) for field in fields_of(cls) if not _is_fixed(field)}
        repeated = {name: known[entry] for name, entry in entries.items() if entry in known}
        about = _first_sentence(summary(cls)) if brief else summary(cls)
        parts += [f"## {title}", "", _wrapped(about), "", *(entries[name] for name in entries if name not in repeated)]
        for first in dict.fromkeys(repeated.values()):
            names = ", ".join(f"`{name}`" for name in repeated if repeated[name] == first)
            parts.append(_wrapped(f"* {names}: as in {first}.", indent="  "))
        parts.append("")
        known = dict.fromkeys(entries.values(), title) | known
    return "\n".join(parts).rstrip() + "\n"


def sections() -> dict[Any, list[str]]:
    """Return every record of the configuration and its paths, in field order."""
    found: dict[Any, list[str]] = {}

    def visit(cls: Any, path: str) -> None:
        first = cls not in found
        if path not in found.setdefault(cls, []):
            found[cls].append(path)
        for field in fields_of(cls) if first else ():
            for record in _records(field.kind):
                visit(record, f"{path}.{field.name}" if path else field.name)

    visit(Config, "")
    return found


def _is_fixed(field: Field) -> bool:
    """Whether the field is the constant `kind` of its record."""
    return field.name == "kind" and len(typing.get_args(field.kind)) == 1


def _records(kind: Any) -> Iterator[Any]:
    """Yield the records that a field of this type can contain."""
    if dataclasses.is_dataclass(kind):
        yield kind
    for inner in typing.get_args(kind):
        yield from _records(inner)


def _title(cls: Any, paths: list[str]) -> str:
    where = ", ".join(f"`{path}`" for path in paths if path) or "The run"
    kind = next((field.default for field in fields_of(cls) if _is_fixed(field)), "")
    return where + (f", kind `{kind}`" if kind else "")


def _entry(field: Field, *, brief: bool) -> str:
    inner = list(_records(field.kind))
    kind = "record" if field.kind in inner else type_text(field.kind)
    default = field.default
    if default is dataclasses.MISSING:
        kind += "; required"
    elif not dataclasses.is_dataclass(default):
        # a default shows the type, unless it is one of several values
        choice = kind.startswith("one of") or type(default) not in (int, float, bool, str)
        kind = f"{kind}; `{_written(default)}`" if choice else f"`{_written(default)}`"
    elif len(inner) > 1:
        kind += f"; {to_dict(default)['kind']}"
    kind = (
        kind.removeprefix("one of the kinds ").removeprefix("one of ").removesuffix("; `None`").removesuffix("; `[]`")
    )
    return _item(f"`{field.name}` ({kind})", _first_sentence(field.text) if brief else field.text)


def _first_sentence(content: str) -> str:
    return re.split(r"(?<=[a-z0-9)\"`]\.)\s+(?=[A-Z0-9`\"])", content, maxsplit=1)[0]


def _written(value: Any) -> str:
    """Return a default value in command-line syntax."""
    if isinstance(value, tuple):
        return f"[{', '.join(_written(item) for item in value)}]"
    if dataclasses.is_dataclass(value):
        return str(tuple(getattr(value, field.name) for field in dataclasses.fields(value)))
    return repr(value) if isinstance(value, str) else str(value)


def commands_text() -> str:
    """Return the reference of all commands in Markdown. What several commands have in common is described once."""
    flags = {name: _flags(entry.command) for name, entry in COMMANDS.items()}
    count = Counter(flag for found in flags.values() for flag in found)
    common = {flag[0].partition("=")[0]: flag for flag, number in reversed(count.most_common()) if number > 1}
    shared = [flag for flag in count if flag in common.values()]
    search = [f"`{usage(field)}`" for field in SEARCH.fields]
    parts = [FLAGS, "## Flags of several commands", "", *(_item(*flag) for flag in shared), ""]
    parts += [_wrapped(f"{SEARCH_FLAGS}: {', '.join(search)}."), ""]
    for name, entry in COMMANDS.items():
        own = [_item(*flag) for flag in flags[name] if flag not in shared]
        more = ", ".join(flag[0].split("`")[1].partition("=")[0] for flag in flags[name] if flag in shared)
        also = f" Also `{more}`." if more else ""
        parts += [
            f"## convs2s {name}",
            "",
            _wrapped(f"{entry.summary[0].upper()}{entry.summary[1:]}.{also}"),
            "",
            *own,
            "",
        ]
    return "\n".join(parts).rstrip() + "\n"


def _flags(command: Command) -> list[tuple[str, str]]:
    """Return usage with default, and description, of each flag that is not of the search."""
    return [
        (f"`{usage(field)}`{default_text(field, group).replace('  (default: ', ' (')}", field.text)
        for group in command.groups
        if group.default is None
        for field in group.fields
    ]


def _item(head: str, description: str) -> str:
    """Return an item of a list; a `<` in the description is escaped, because Markdown reads <unk> as a tag."""
    return _wrapped(f"* {head}: " + description.replace("<", "\\<"), indent="  ")


def _wrapped(content: str, indent: str = "") -> str:
    options: dict[str, Any] = {"width": WIDTH, "break_long_words": False, "break_on_hyphens": False}
    paragraphs = content.split("\n\n")
    return "\n\n".join(
        part if part.startswith("#") else textwrap.fill(part, subsequent_indent=indent, **options)
        for part in paragraphs
    )


if __name__ == "__main__":
    for page, written in (("configuration.md", text(brief=True)), ("commands.md", commands_text())):
        (Path(sys.argv[1]) / page).write_text(written, encoding="utf-8")
