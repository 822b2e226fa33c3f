"""The reference of all configuration fields: docs/configuration.md and the output of `convs2s config --reference`."""

import dataclasses
import textwrap
import typing
from collections.abc import Iterator
from typing import Any

from convs2s_jax.core.config import to_dict
from convs2s_jax.core.fields import Field, fields_of, summary, type_text
from convs2s_jax.training.run.config import Config

HEAD = """# Every field of the configuration

A configuration file returns these fields as nested dictionaries. On the command line, each field is a flag, as in
`--config.model.dropout=0.3`. A field that is not set has its default. If a record has several kinds, the field `kind`
selects one. [commands.md](commands.md) lists the other flags.

This page is generated from the source. Regenerate it after a change there:
`python -m convs2s_jax.commands.reference > docs/configuration.md`.
"""
WIDTH = 150


def text() -> str:
    """Return the whole reference in Markdown."""
    return "\n".join([HEAD, *(_section(_title(cls, paths), cls) for cls, paths in sections().items())])


def sections() -> dict[Any, list[str]]:
    """Return every record of the configuration and its paths, in field order."""
    found: dict[Any, list[str]] = {}
    waiting: list[tuple[Any, str]] = [(Config, "")]
    while waiting:
        cls, path = waiting.pop(0)
        first = cls not in found
        if path not in found.setdefault(cls, []):
            found[cls].append(path)
        if first:
            inner = [
                (record, f"{path}.{field.name}" if path else field.name)
                for field in fields_of(cls)
                for record in _records(field.kind)
            ]
            waiting = inner + waiting
    return found


def undescribed() -> list[str]:
    """Return the fields without a description in their record's docstring, as CLASS.field."""
    return [
        f"{cls.__name__}.{field.name}"
        for cls in sections()
        for field in fields_of(cls)
        if not _is_fixed(field) and not field.text
    ]


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


def _section(title: str, cls: Any) -> str:
    entries = [_entry(field) for field in fields_of(cls) if not _is_fixed(field)]
    return "\n".join([f"## {title}", "", _wrapped(summary(cls)), "", *entries]).rstrip() + "\n"


def _entry(field: Field) -> str:
    inner = list(_records(field.kind))
    facts = "record" if field.kind in inner else type_text(field.kind)
    if field.default is dataclasses.MISSING:
        facts += "; required"
    elif not dataclasses.is_dataclass(field.default):
        facts += f"; default `{_written(field.default)}`"
    elif len(inner) > 1:
        facts += f"; default {to_dict(field.default)['kind']}"
    description = field.text.replace("<", "\\<")  # Markdown reads <unk> as a tag
    return _wrapped(f"* `{field.name}` ({facts}): {description}", indent="  ")


def _written(value: Any) -> str:
    """Return a default value in command-line syntax."""
    if isinstance(value, tuple):
        return f"[{', '.join(_written(item) for item in value)}]"
    if dataclasses.is_dataclass(value):
        return str(tuple(getattr(value, field.name) for field in dataclasses.fields(value)))
    return repr(value) if isinstance(value, str) else str(value)


def _wrapped(content: str, indent: str = "") -> str:
    options: dict[str, Any] = {"width": WIDTH, "break_long_words": False, "break_on_hyphens": False}
    paragraphs = content.split("\n\n")
    return "\n\n".join(textwrap.fill(part, subsequent_indent=indent, **options) for part in paragraphs)


if __name__ == "__main__":
    print(text(), end="")  # noqa: T201
