"""Parser for compiled programs as XLA prints them (HLO text): computations, operations, and how often each runs."""

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

BITS = {"pred": 8, "c64": 64, "c128": 128, "token": 0, "opaque": 0}
"""Bits of an element for types whose name does not contain the number."""


class Buffer(NamedTuple):
    """An array of a program.

    Attributes:
      dtype: name of its type, such as "bf16".
      dims: its shape.
      space: number of its memory; 0 is the device's main memory, others are on the chip.
    """

    dtype: str
    dims: tuple[int, ...]
    space: int = 0

    @property
    def bytes(self) -> int:
        """Size in bytes, without the padding of a tiled layout."""
        bits = BITS.get(self.dtype)
        if bits is None:
            digits = re.search(r"\d+", self.dtype)
            bits = int(digits.group()) if digits else 32
        return math.prod(self.dims) * bits // 8


class Operation(NamedTuple):
    """One line of a computation.

    Attributes:
      name: name of its result.
      kind: kind of operation, such as "fusion".
      results: arrays that it returns.
      operands: names of the operations that it reads.
      rest: its attributes, as text; for a constant, its value.
      root: whether its result is that of the computation.
    """

    name: str
    kind: str
    results: tuple[Buffer, ...]
    operands: tuple[str, ...]
    rest: str
    root: bool

    def called(self, attribute: str) -> str:
        """Return the name of the computation in an attribute, such as "body"; "" if it is missing."""
        found = re.search(rf"\b{attribute}=%?([\w.\-]+)", self.rest)
        return found.group(1) if found else ""


class Program(NamedTuple):
    """A compiled program.

    Attributes:
      computations: all computations, by name.
      entry: name of the one that is executed.
    """

    computations: Mapping[str, Mapping[str, Operation]]
    entry: str


class Runs(NamedTuple):
    """How a computation runs in one execution of the program.

    Attributes:
      times: how often it runs.
      fused: whether it is the body of one operation, so that its intermediate results are not stored in memory.
      asynchronous: whether it overlaps with what follows it.
    """

    times: int
    fused: bool = False
    asynchronous: bool = False


_BEGIN = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
_BUFFER = re.compile(r"\b([a-z][a-z0-9]*)\[([\d,<=]*)\](?:\{([^}]*)\})?")
_NAME = re.compile(r"%([\w.\-]+)")


def parse(text: str) -> Program:
    """Parse `compiled.as_text()`."""
    computations: dict[str, dict[str, Operation]] = {}
    entry, current = "", {}
    for line in text.splitlines():
        begin = _BEGIN.match(line)
        if begin:
            current = computations.setdefault(begin.group(2), {})
            entry = begin.group(2) if begin.group(1) else entry
        elif " = " in line and line.startswith("  "):
            operation = _operation(line)
            current[operation.name] = operation
    return Program(computations, entry)


def runs(program: Program) -> dict[str, Runs]:
    """Return how each computation runs. Those that only define how elements are combined are omitted."""
    found: dict[str, Runs] = {}

    def visit(name: str, how: Runs) -> None:
        before = found.get(name)
        found[name] = how if before is None else how._replace(times=before.times + how.times)
        for operation in program.computations[name].values():
            for inner, changed in _calls(program, name, operation, how):
                visit(inner, changed)

    visit(program.entry, Runs(1))
    return found


def buffers(text: str) -> tuple[Buffer, ...]:
    """Parse the arrays in the text of a type, such as "(f32[8,4]{1,0}, s32[])"."""
    return tuple(
        Buffer(
            dtype,
            tuple(int(size.lstrip("<=")) for size in dims.split(",") if size),
            int(space.group(1)) if (space := re.search(r"S\((\d+)\)", layout or "")) else 0,
        )
        for dtype, dims, layout in _BUFFER.findall(text)
    )


def _calls(program: Program, where: str, operation: Operation, how: Runs) -> list[tuple[str, Runs]]:
    """Return the computations that an operation runs."""
    kind = operation.kind
    if kind == "while":
        times = how.times * _trips(program, where, operation)
        return [(operation.called("body"), how._replace(times=times))]
    if kind == "fusion":
        return [(operation.called("calls"), how._replace(fused=True))]
    if kind == "call":
        return [(operation.called("to_apply"), how)]
    if kind == "async-start":
        return [(operation.called("calls"), how._replace(asynchronous=True))]
    if kind == "conditional":
        listed = re.search(r"branch_computations=\{([^}]*)\}", operation.rest)
        names = _NAME.findall(listed.group(1)) if listed else []
        names = names or [operation.called(f"{side}_computation") for side in ("true", "false")]
        return [(name, how) for name in names if name]
    return []


def _trips(program: Program, where: str, loop: Operation) -> int:
    """Return how often the body of a loop runs, from XLA's annotation or the bound in its condition; otherwise 1."""
    known = re.search(r'known_trip_count[^}]*?"n":"(\d+)"', loop.rest)
    if known:
        return int(known.group(1))
    condition = program.computations.get(loop.called("condition"), {})
    for test in condition.values():
        if test.kind != "compare" or not test.root or "direction=LT" not in test.rest or len(test.operands) != 2:
            continue
        counter, bound = (condition.get(name) for name in test.operands)
        if counter is None or bound is None or counter.kind != "get-tuple-element" or bound.kind != "constant":
            continue
        index = int((re.search(r"index=(\d+)", counter.rest) or [0, 0])[1])
        begin = _constant(program.computations[where], loop.operands[0], index)
        step = _step(program.computations.get(loop.called("body"), {}), index)
        return max(-(-(int(bound.rest.split(")")[0]) - begin) // step), 0)
    return 1


def _step(body: Mapping[str, Operation], index: int) -> int:
    """Return what a loop adds to its counter, an element of its tuple, such as 2 in an unrolled loop; 1 if unknown."""
    root = next((operation for operation in body.values() if operation.root), None)
    counter = body.get(root.operands[index]) if root is not None and root.kind == "tuple" else None
    if counter is None or counter.kind != "add":
        return 1
    added = [body[name] for name in counter.operands if name in body and body[name].kind == "constant"]
    value = added[0].rest.split(")")[0] if len(added) == 1 else ""
    return max(int(value), 1) if value.isdigit() else 1


def _constant(computation: Mapping[str, Operation], tuple_name: str, index: int) -> int:
    """Return the value of a tuple element if it is a constant; otherwise 0, the usual initial value of counters."""
    made = computation.get(tuple_name)
    name = made.operands[index] if made is not None and made.kind == "tuple" else ""
    while (operation := computation.get(name)) is not None and operation.kind in ("copy", "bitcast"):
        name = operation.operands[0]
    value = operation.rest.split(")")[0] if operation is not None and operation.kind == "constant" else "0"
    return int(value) if value.lstrip("-").isdigit() else 0


def _operation(line: str) -> Operation:
    """Parse "  ROOT %name = TYPE kind(operands), attributes"."""
    line = re.sub(r"/\*.*?\*/", "", line.strip())
    root = line.startswith("ROOT ")
    name, _, right = line.removeprefix("ROOT ").partition(" = ")
    end = _closing(right, 0) + 1 if right.startswith("(") else right.index(" ")
    kind, _, rest = right[end:].strip().partition("(")
    close = _closing("(" + rest, 0) - 1
    inside = rest[:close]
    plain = [part.strip() for part in inside.split(",")] if "%" not in inside else _NAME.findall(inside)
    constant = kind in ("constant", "parameter", "iota")
    operands = () if constant else tuple(part for part in plain if part)
    return Operation(name.lstrip("%"), kind, buffers(right[:end]), operands, rest if constant else rest[close:], root)


def _closing(text: str, begin: int) -> int:
    """Return the index of the parenthesis that closes the one at `begin`, or of the last character if none does."""
    depth = 0
    for i in range(begin, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i
    return len(text) - 1
