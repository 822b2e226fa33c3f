"""Memory traffic of a compiled program: bytes between a chip and its memory, with loops counted as often as they run.

Each operation reads its operands and writes its results once. What is inside a fusion, or in memory on the chip (as XLA
assigns it on TPUs), does not count. For a slice, only the slice is read. For an array that is updated in place, only
the update is written. On TPUs, an asynchronous collective runs inside the operations that overlap with it, which pass
its arrays on. These count where it starts. XLA's own `cost_analysis` counts a loop once.
"""

import re
from collections.abc import Mapping, Set

from convs2s_jax.scaling import hlo
from convs2s_jax.scaling.hlo import Buffer, Operation, Program

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
COPIES = ("copy-start", "dynamic-slice-start", "dynamic-update-slice-start")
"""Copies between two memories that overlap with other operations."""


def memory_bytes(program: Program) -> tuple[int, int]:
    """Return the bytes read from and written to the device's memory, and the part of operations with products.

    Products are those of matrices, and convolutions.
    """
    total = products = 0
    for name, how in hlo.runs(program).items():
        if how.fused:
            continue
        computation = program.computations[name]
        for operation in computation.values():
            size = how.times * _bytes(program, computation, operation)
            total += size
            products += size * _has_product(program, operation)
    return total, products


def _has_product(program: Program, operation: Operation) -> bool:
    if operation.kind in ("fusion", "fusion-start"):
        inner = program.computations.get(operation.called("calls"), {})
        return any(each.kind in PRODUCTS for each in inner.values())
    return operation.kind in PRODUCTS or (operation.kind == "custom-call" and bool(LIBRARIES.search(operation.rest)))


def _bytes(program: Program, computation: Mapping[str, Operation], operation: Operation) -> int:
    """Return the bytes of one operation."""
    kind = operation.kind
    if kind in NOTHING or kind.endswith("-done"):
        return 0
    if kind in COPIES:
        return _copied(operation)
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


def _copied(operation: Operation) -> int:
    """Return the bytes of a copy that begins, once for each side of it in the device's main memory."""
    results = operation.results
    if operation.kind == "copy-start":  # (target, source, context)
        target, source = results[:2]
    else:  # (operands, target, context); an update is the second operand
        source, target = results[1 if "update" in operation.kind else 0], results[-2]
    size = min(source.bytes, target.bytes)
    return sum(size for buffer in (source, target) if buffer.space == 0)


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
