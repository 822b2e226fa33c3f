"""Python literals as text: the notation of values on a command line."""

import ast
from typing import Any

REPEATED = 1000
"""Most items, those of inner lists included, that the notation [(256, 3)] * 4 can make."""


def literal(text: str) -> Any:
    """Read a Python literal, in which lists and tuples may be repeated (*) or joined (+), as in fairseq's layer lists.

    Text that is no such literal, or whose repetitions make more than `REPEATED` items, is returned as it is. Nothing is
    evaluated: only constants, lists, tuples, dictionaries, repetition and concatenation are read.
    """
    try:
        return _literal(ast.parse(text.strip(), mode="eval").body)[0]
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


class WrittenInt(int):
    """A whole number with the `text` that spelt it."""

    text: str


class WrittenFloat(float):
    """A number with the `text` that spelt it."""

    text: str


def written(text: str) -> Any:
    """`literal`, but a number remembers how it was written: as a name, 2024_01 and 1.10 are not 202401 and 1.1."""
    value = literal(text)
    kind = {int: WrittenInt, float: WrittenFloat}.get(type(value))
    if kind is None:
        return value
    number = kind(value)
    number.text = text
    return number


def _literal(node: ast.expr) -> tuple[Any, int]:
    """The value of a node, and the number of items in it: those of inner lists are counted as often as they occur."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Mult):
        (left, first), (right, second) = _literal(node.left), _literal(node.right)
        if isinstance(node.op, ast.Mult):
            items, times, size = (left, right, first) if isinstance(left, list | tuple) else (right, left, second)
            if not (isinstance(items, list | tuple) and isinstance(times, int) and times * size <= REPEATED):
                raise ValueError("only lists are repeated, and none has more items than that")
            return items * times, max(times, 0) * size
        if isinstance(left, list) and isinstance(right, list):
            return left + right, first + second
        raise ValueError("only lists are joined")
    if isinstance(node, ast.List | ast.Tuple):
        inner = [_literal(item) for item in node.elts]
        values = [value for value, _ in inner]
        return (values if isinstance(node, ast.List) else tuple(values)), 1 + sum(size for _, size in inner)
    return ast.literal_eval(node), 1
