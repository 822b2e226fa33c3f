"""Rules for the numbers and texts of a checkpoint: nothing of it is used before `checked` or a rule has seen it."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from convs2s_jax.core.errors import UserError, shown
from convs2s_jax.core.literals import literal

Rule = Callable[[str, Any], Any]
"""(name of a value, the value) -> the value in its proper type; a UserError that begins with the name."""

MOST_STEPS = 2**31 - 1
"""Updates are counted in 32 bits."""
_LONGEST_TEXT, _LONGEST_LIST = 1000, 1000


def checked(values: Mapping[str, Any], rules: Mapping[str, Rule]) -> dict[str, Any]:
    """The values that have a rule, each in its proper type; None counts as absent, and others are left out.

    Checking twice changes nothing.

    Raises:
      UserError: a value is not what its rule allows.
    """
    return {name: rule(name, values[name]) for name, rule in rules.items() if values.get(name) is not None}


def whole(least: int, most: int) -> Rule:
    """A whole number from `least` to `most`."""

    def rule(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise UserError(f"{name} is {shown(value)}: a whole number from {least} to {most} is expected")
        return value

    return rule


def number(least: float, most: float) -> Rule:
    """A number from `least` to `most`, never infinite or NaN. Whole numbers remain whole."""

    def rule(name: str, value: Any) -> int | float:
        right = isinstance(value, int | float) and not isinstance(value, bool)
        if not right or not least <= value <= most or not math.isfinite(value):
            raise UserError(f"{name} is {shown(value)}: a number from {least:g} to {most:g} is expected")
        return value

    return rule


def flag(name: str, value: Any) -> bool:
    """True or False, also as 1 or 0."""
    if not isinstance(value, bool | int) or value not in (0, 1):
        raise UserError(f"{name} is {shown(value)}: fairseq has True or False")
    return bool(value)


def text(name: str, value: Any) -> str:
    """A short text."""
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        raise UserError(f"{name} is {shown(value)}: a text of at most {_LONGEST_TEXT} characters is expected")
    return value


def language(name: str, value: Any) -> str:
    """The name of a language, which becomes part of a file's name."""
    value = text(name, value)
    if any(char in "/\\" or not char.isprintable() for char in value):
        raise UserError(f"{name} is {shown(value)}: the name of a language is expected, such as 'de'")
    return value


def anything(_name: str, value: Any) -> str:
    """Whatever it is, as a short text: for values of which only the presence matters."""
    return shown(value)


def items(of: Rule) -> Rule:
    """A list of one item or more, or a text that spells it as fairseq does; a single item is a list of it."""

    def rule(name: str, value: Any) -> list[Any]:
        value = spelled(value)
        found = value if isinstance(value, list | tuple) else [value]
        if not 1 <= len(found) <= _LONGEST_LIST:
            raise UserError(f"{name} is {shown(value)}: a list of 1 to {_LONGEST_LIST} items is expected")
        return [of(f"{name}[{i}]", item) for i, item in enumerate(found)]

    return rule


def pair(of: Rule) -> Rule:
    """A list of two items, or a text that spells it."""

    def rule(name: str, value: Any) -> list[Any]:
        value = spelled(value)
        if not isinstance(value, list | tuple) or len(value) != 2:
            raise UserError(f"{name} is {shown(value)}: a list of two items is expected")
        return [of(f"{name}[{i}]", item) for i, item in enumerate(value)]

    return rule


def spelled(value: Any) -> Any:
    """The value that a text spells as a Python literal, as fairseq writes lists; others as they are."""
    return literal(value) if isinstance(value, str) and len(value) <= _LONGEST_TEXT * 10 else value
