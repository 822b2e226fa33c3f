"""Memory traffic of a compiled program: bytes between a chip and its memory, with loops counted as often as they run.

Each operation reads its operands and writes its results once. What is inside a fusion, or in memory on the chip (as XLA
assigns it on TPUs), does not count. For a slice, only the slice is read. For an array that is updated in place, only
the update is written. On TPUs, an asynchronous collective runs inside the operations that overlap with it, which pass
its arrays on. These count where it starts. XLA's own `cost_analysis` counts a loop once.

`copies` counts transfers over the link to the host.
"""

import re
from collections.abc import Iterator, Mapping, Set
from typing import NamedTuple

from convs2s_jax.scaling import hlo
from convs2s_jax.scaling.hlo import HOST, Buffer, Operation, Program, Runs

NOTHING = frozenset(
    {
        *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "optimization-barrier"),
        *("while", "conditional", "call", "partition-id", "replica-id"),
        *("async-start", "async-update", "async-done"),
    }
)
"""Operations without their own traffic; that of a loop is counted in its body."""
PARTS = ("dynamic-slice", "slice", "gather")
"""Operations that read a part of their first operand, as large as their result."""
PRODUCTS = ("dot", "convolution")
LIBRARIES = re.compile('custom_call_target="(__cublas|__cudnn|__onednn)')
"""Library calls that compute products."""
COPIES = ("copy", "dynamic-slice", "dynamic-update-slice")
"""Operations that copy between two memories; those that end in -start overlap with others."""


class Copies(NamedTuple):
    """Bytes between a device and its host in an execution of a program.

    Attributes:
      to_host: bytes written to the host's memory.
      from_host: bytes read from it.
      synchronous: the part of both that does not overlap with other operations.
    """

    to_host: int = 0
    from_host: int = 0
    synchronous: int = 0


def copies(program: Program) -> Copies:
    """Return the bytes copied to the host and back."""
    found = Copies()
    for how, computation, operation in _executed(program):
        copied = _copied(computation, operation)
        if copied is None:
            continue
        source, target, size = copied
        if source.space != target.space:
            out, back = (how.times * size * (buffer.space == HOST) for buffer in (target, source))
            waits = 0 if how.asynchronous or operation.kind.endswith("-start") else out + back
            found = Copies(found.to_host + out, found.from_host + back, found.synchronous + waits)
    return found


def memory_bytes(program: Program) -> int:
    """Return the bytes read from and written to the device's memory."""
    return sum(how.times * _bytes(program, inside, operation) for how, inside, operation in _executed(program))


def product_bytes(program: Program) -> int:
    """Return the part of `memory_bytes` from operations that contain matrix products or convolutions."""
    return sum(
        how.times * _bytes(program, inside, operation)
        for how, inside, operation in _executed(program)
        if _has_product(program, operation)
    )


def _has_product(program: Program, operation: Operation) -> bool:
    if operation.kind in ("fusion", "fusion-start"):
        inner = program.computations.get(operation.called("calls"), {})
        return any(each.kind in PRODUCTS for each in inner.values())
    return operation.kind in PRODUCTS or (operation.kind == "custom-call" and bool(LIBRARIES.search(operation.rest)))


def _executed(program: Program) -> Iterator[tuple[Runs, Mapping[str, Operation], Operation]]:
    """Yield each operation that is not inside a fusion, with how its computation runs, and that computation."""
    for name, how in hlo.runs(program).items():
        if not how.fused:
            computation = program.computations[name]
            for operation in computation.values():
                yield how, computation, operation


def _bytes(program: Program, computation: Mapping[str, Operation], operation: Operation) -> int:
    """Return the bytes of one operation."""
    kind = operation.kind
    if kind in NOTHING or kind.endswith("-done"):
        return 0
    copied = _copied(computation, operation) if kind.endswith("-start") else None
    if copied is not None:
        source, target, size = copied
        return sum(size for buffer in (source, target) if buffer.space == 0)
    operands = [computation[name].results if name in computation else () for name in operation.operands]
    given = [buffer for operand in operands for buffer in operand]
    if kind == "fusion-start":  # (operands, results, context)
        kind = "fusion"
        operation = operation._replace(kind=kind, results=operation.results[len(given) : -1])
    if kind.endswith("-start") and len(operation.results) > 1:  # collective: (operands, results, contexts), or results
        first = len(given) if len(operation.results) >= 2 * len(given) else 0
        pairs = zip(given, operation.results[first:], strict=False)
        sizes = [(pair, min(buffer.bytes for buffer in pair)) for pair in pairs]
        return sum(size for pair, size in sizes for buffer in pair if buffer.space == 0)
    if kind in PARTS:
        return _hbm_bytes(operation.results) + min(_hbm_bytes(operation.results), _hbm_bytes(operands[0]))
    if kind == "dynamic-update-slice":
        return 2 * _hbm_bytes(operands[1])
    if kind != "fusion":
        return _hbm_bytes(operation.results) + sum(_hbm_bytes(operand) for operand in operands)
    inner = program.computations[operation.called("calls")]
    parameters = {item.rest.split(")")[0]: item.name for item in inner.values() if item.kind == "parameter"}
    passed, made = _passed_on(operation, inner)
    read = sum(
        min(_hbm_bytes(operand), _read(inner, parameters[str(i)], operand))
        for i, operand in enumerate(operands)
        if i not in passed
    )
    return read + _written(inner, operation.results, made)


def _copied(computation: Mapping[str, Operation], operation: Operation) -> tuple[Buffer, Buffer, int] | None:
    """Return what a copy reads and writes, and the number of bytes; None for other operations."""
    kind, begun = operation.kind.removesuffix("-start"), operation.kind.endswith("-start")
    if kind not in COPIES:
        return None
    results = operation.results
    if begun and kind == "copy":
        target, source = results[:2]
        return source, target, min(source.bytes, target.bytes)
    number = int(kind == "dynamic-update-slice")  # the operand that is copied
    operand = computation.get(operation.operands[number])
    source = results[number] if begun else operand.results[0] if operand else results[0]
    target = results[-2] if begun else results[0]
    return source, target, source.bytes if number else target.bytes


def _passed_on(fusion: Operation, inner: Mapping[str, Operation]) -> tuple[set[int], set[int]]:
    """Return the indices of operands and results that share memory, in a fusion that overlaps with a collective."""
    text = "".join(operation.rest for operation in inner.values())
    if "chain_id=" not in text or '"AsyncCollectiveStart"' in text:
        return set(), set()
    same = re.findall(r"\{(\d*)\}: \((\d+), \{\}\)", fusion.rest)
    return {int(operand) for _, operand in same}, {int(result or 0) for result, _ in same}


def _hbm_bytes(buffers: tuple[Buffer, ...]) -> int:
    """Return the bytes of the arrays that are in the device's main memory."""
    return sum(buffer.bytes for buffer in buffers if buffer.space == 0)


def _read(inner: Mapping[str, Operation], name: str, whole: tuple[Buffer, ...]) -> int:
    """Return the bytes of a parameter that a fusion reads."""
    total = 0
    for user in inner.values():
        if name not in user.operands:
            continue
        if user.kind in PARTS and user.operands[0] == name:
            total += sum(buffer.bytes for buffer in user.results)
        elif user.kind == "bitcast":
            total += _read(inner, user.name, user.results)
        elif not (user.kind == "dynamic-update-slice" and user.operands[0] == name):
            return sum(buffer.bytes for buffer in whole)
    return total


def _written(inner: Mapping[str, Operation], results: tuple[Buffer, ...], passed_on: Set[int]) -> int:
    """Return the bytes that a fusion writes: each result, or only the update of an array that is updated in place."""
    root = next(operation for operation in inner.values() if operation.root)
    made = [inner[name] for name in root.operands] if root.kind == "tuple" else [root] * len(results)
    total = 0
    for number, (buffer, operation) in enumerate(zip(results, made, strict=False)):
        if number in passed_on or buffer.space != 0:
            continue
        while operation.kind == "bitcast" and operation.operands[0] in inner:
            operation = inner[operation.operands[0]]
        in_place = operation.kind == "dynamic-update-slice"
        updated = inner[operation.operands[1]].results if in_place else (buffer,)
        total += min(buffer.bytes, sum(each.bytes for each in updated))
    return total
