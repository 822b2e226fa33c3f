"""Rules for the values in a checkpoint. No value is used before a rule has checked it."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from convs2s_jax.core.config import literal
from convs2s_jax.core.errors import UserError, shown

Rule = Callable[[str, Any], Any]
"""(name of a value, the value) -> the value in its proper type. Raises a UserError that begins with the name."""

MOST_STEPS = 2**31 - 1
"""Updates are counted in 32 bits."""
_LONGEST_TEXT, _LONGEST_LIST = 1000, 1000


def checked(values: Mapping[str, Any], rules: Mapping[str, Rule]) -> dict[str, Any]:
    """Return the values that have a rule, each in its proper type. Others are dropped; None counts as absent.

    The function is idempotent.

    Raises:
      UserError: a value violates its rule.
    """
    return {name: rule(name, values[name]) for name, rule in rules.items() if values.get(name) is not None}


def whole(least: int, most: int) -> Rule:
    """An integer between `least` and `most`."""

    def rule(name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise UserError(f"{name} is {shown(value)}; expected an integer between {least} and {most}")
        return value

    return rule


def number(least: float, most: float) -> Rule:
    """A finite number between `least` and `most`. Integers remain integers."""

    def rule(name: str, value: Any) -> int | float:
        right = isinstance(value, int | float) and not isinstance(value, bool)
        if not right or not least <= value <= most or not math.isfinite(value):
            raise UserError(f"{name} is {shown(value)}; expected a number between {least:g} and {most:g}")
        return value

    return rule


def flag(name: str, value: Any) -> bool:
    """True or False, or 1 or 0."""
    if not isinstance(value, bool | int) or value not in (0, 1):
        raise UserError(f"{name} is {shown(value)}; expected True or False")
    return bool(value)


def text(name: str, value: Any) -> str:
    """A short string."""
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT:
        raise UserError(f"{name} is {shown(value)}; expected a string of at most {_LONGEST_TEXT} characters")
    return value


def language(name: str, value: Any) -> str:
    """The name of a language, which becomes part of a file name."""
    value = text(name, value)
    if any(char in "/\\" or not char.isprintable() for char in value):
        raise UserError(f"{name} is {shown(value)}; expected the name of a language, such as 'de'")
    return value


def items(of: Rule, least: int = 1, most: int = _LONGEST_LIST) -> Rule:
    """A list, or a string that spells one as fairseq does. A single item becomes a list."""

    def rule(name: str, value: Any) -> list[Any]:
        value = spelled(value)
        found = value if isinstance(value, list | tuple) else [value]
        if not least <= len(found) <= most:
            raise UserError(f"{name} is {shown(value)}; expected a list of {least} to {most} items")
        return [of(f"{name}[{i}]", item) for i, item in enumerate(found)]

    return rule


def spelled(value: Any) -> Any:
    """Parse a string as a Python literal, which is how fairseq writes lists. Other values are returned unchanged."""
    return literal(value) if isinstance(value, str) and len(value) <= _LONGEST_TEXT * 10 else value
