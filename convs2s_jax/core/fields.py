"""The type, default and description of each field of a config record.

Descriptions come from the `Attributes:` section of the record's docstring. Flags, `--help` and docs/configuration.md
are generated from them.
"""

import dataclasses
import inspect
import re
import types
import typing
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, Union


class Field(NamedTuple):
    """A field of a record.

    Attributes:
      name: name of the field.
      kind: its annotated type.
      default: its default; `dataclasses.MISSING` if a value is required.
      text: its description, on one line; "" if the record has none.
    """

    name: str
    kind: Any
    default: Any
    text: str


def describe(cls: type) -> dict[str, str]:
    """Return field names and their descriptions, from the `Attributes:` sections of a class and its bases.

    An entry is `name: text`, or `name, other: text` for fields described together. Lines with deeper indentation
    continue the entry above.
    """
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        doc = inspect.cleandoc(vars(base).get("__doc__") or "")
        section = re.split(r"^\S", doc.partition("\nAttributes:\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
        for entry in re.split(r"^  (?=\w)", section, flags=re.MULTILINE)[1:]:
            names, _, text = entry.partition(":")
            found |= dict.fromkeys(names.split(", "), " ".join(text.split()))
    return found


def fields_of(cls: Any) -> Iterator[Field]:
    """Yield the fields of a dataclass in order."""
    hints, texts = typing.get_type_hints(cls), describe(cls)
    for field in dataclasses.fields(cls):
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        yield Field(field.name, hints[field.name], default, texts.get(field.name, ""))


def summary(cls: type) -> str:
    """Return the docstring of a class up to its first section, one line per paragraph."""
    head = re.split(r"^\w+:$", inspect.cleandoc(cls.__doc__ or ""), maxsplit=1, flags=re.MULTILINE)[0]
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in head.strip().split("\n\n"))


def type_text(kind: Any) -> str:
    """Return a type in words, for messages: "integer", "list of numbers", "one of exact, fairseq"."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        records: list[Any] = [item for item in arguments if dataclasses.is_dataclass(item)]
        if records:
            return "one of the kinds " + ", ".join(item.kind for item in records)
        return " or ".join(type_text(item) for item in arguments)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}" if len(arguments) > 1 else f"always {arguments[0]}"
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return f"list of {_plural(arguments[0])}"
        if len(set(arguments)) == 1:
            return f"list of {len(arguments)} {_plural(arguments[0])}"
        return f"list of {len(arguments)}: {', '.join(type_text(item) for item in arguments)}"
    if dataclasses.is_dataclass(kind):
        return f"record ({', '.join(field.name for field in dataclasses.fields(kind))})"
    return _NAMES[kind]


_NAMES = {int: "integer", float: "number", bool: "True or False", str: "string", type(None): "None"}


def _plural(kind: Any) -> str:
    if kind in (int, float, str):
        return f"{_NAMES[kind]}s"
    text = type_text(kind)
    article = "" if text.startswith("one of") else "an " if text[0] in "aeiou" else "a "
    return f"items, each {article}{text}"
