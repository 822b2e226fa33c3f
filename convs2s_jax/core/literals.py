"""Parse Python literals, the notation of values on a command line."""

import ast
from typing import Any

REPEATED = 1000
"""Maximum number of items, including those of inner lists, that the notation [(256, 3)] * 4 can create."""


def literal(text: str) -> Any:
    """Parse a Python literal. Lists and tuples may be repeated (*), and lists joined (+), as in fairseq's layer lists.

    Text that is not such a literal, or whose repetitions create more than `REPEATED` items, is returned unchanged.
    Nothing is evaluated: only constants, lists, tuples, dictionaries, repetition and concatenation are parsed.
    """
    try:
        return _literal(ast.parse(text.strip(), mode="eval").body)[0]
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


class WrittenInt(int):
    """An integer that remembers its spelling in `text`."""

    text: str


class WrittenFloat(float):
    """A float that remembers its spelling in `text`."""

    text: str


def literal_with_spelling(text: str) -> Any:
    """Parse like `literal`, but keep the spelling of numbers: the names 2024_01 and 1.10 are not 202401 and 1.1."""
    value = literal(text)
    kind = {int: WrittenInt, float: WrittenFloat}.get(type(value))
    if kind is None:
        return value
    number = kind(value)
    number.text = text
    return number


def _literal(node: ast.expr) -> tuple[Any, int]:
    """Return the value of a node and its number of items. Items of inner lists count as often as they occur."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
        (left, first), (right, second) = _literal(node.left), _literal(node.right)
        if isinstance(node.op, ast.Mult):
            items, times, size = (left, right, first) if isinstance(left, list | tuple) else (right, left, second)
            if not (isinstance(items, list | tuple) and isinstance(times, int) and times * size <= REPEATED):
                raise ValueError(f"only lists and tuples can be repeated, up to {REPEATED} items")
            return items * times, max(times, 0) * size
        if isinstance(left, list) and isinstance(right, list):
            return left + right, first + second
        raise ValueError("only lists can be joined")
    if isinstance(node, ast.List | ast.Tuple):
        inner = [_literal(item) for item in node.elts]
        values = [value for value, _ in inner]
        return (values if isinstance(node, ast.List) else tuple(values)), 1 + sum(size for _, size in inner)
    return ast.literal_eval(node), 1
