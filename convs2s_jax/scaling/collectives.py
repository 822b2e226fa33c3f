"""Collective operations of a compiled program: kind, mesh axis, bytes, count, and whether they are asynchronous.

Kinds are XLA's: all-reduce, all-gather, reduce-scatter, all-to-all, collective-permute. The bytes on the wire are those
that one device sends in a ring of n devices, for an array of `size` bytes (the full array, not the device's shard):

    all-gather, reduce-scatter, all-to-all   size (n - 1) / n
    all-reduce                             2 size (n - 1) / n
    collective-permute                       size

Between TPU slices the hosts send. XLA prints this as one `send` on each device, of the shard that the corresponding
devices of the other slices need.
"""

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from convs2s_jax.scaling import hlo
from convs2s_jax.scaling.hlo import Operation, Program, Runs

PERMUTATION = "collective-permute"
KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", PERMUTATION)
SENDS = {f"ALL_{name}": f"all-{name.lower()}" for name in ("REDUCE", "GATHER")} | {
    "REDUCE_SCATTER": "reduce-scatter",
    "ALL_TO_ALL": "all-to-all",
    "ONE_TO_ONE": PERMUTATION,
}
"""Names of collectives between slices in a send."""
PART = "part of "
BETWEEN = " between slices"
"""Suffix of the axis of a collective on the network between slices."""
ELSEWHERE = "other"
"""The axis of a collective among devices that are not aligned along mesh axes."""


class Collective(NamedTuple):
    """Collectives of one kind over one axis in an execution of a program.

    Attributes:
      kind: one of `KINDS`.
      axis: mesh axes that it spans, joined by "+". The prefix "part of " means only some of the devices, and the suffix
        `BETWEEN` the network between slices.
      members: positions in the mesh of the devices of the first group. For permutations, those of all pairs: a sender,
        its receiver, the next sender and so on.
      times: how often they run.
      size: bytes of the full arrays, over all times.
      wire: bytes that one device sends, over all times.
      asynchronous: whether it overlaps with other operations.
    """

    kind: str
    axis: str
    members: tuple[int, ...]
    times: int
    size: int
    wire: float
    asynchronous: bool


def of_program(program: Program, mesh: Mapping[str, int], slices: Sequence[int] = (0,)) -> tuple[Collective, ...]:
    """Return the collectives of a program, grouped by kind, axis and asynchrony, those with the most bytes sent first.

    Args:
      program: the parsed program.
      mesh: size of each mesh axis, in order. The number of a device in the program is its position in the mesh.
      slices: position in the mesh of the first device of each slice.
    """
    found: dict[tuple[str, str, bool], list[Collective]] = {}
    seen: set[tuple[str, str]] = set()
    for name, how in hlo.runs(program).items():
        computation = program.computations[name]
        for operation in computation.values():
            kind = _kind(operation, name)
            if kind is None or _seen(operation, seen):
                continue
            between = operation.kind == "send"
            groups = _between(kind, slices) if between else _groups(operation, math.prod(mesh.values()))
            if groups:  # otherwise a permutation that moves nothing
                one = _one(kind, operation, computation, groups, mesh, how)
                found.setdefault((one.kind, one.axis, one.asynchronous), []).append(one)
    return tuple(sorted(map(_sum, found.values()), key=lambda each: -each.wire))


def _sum(same: Sequence[Collective]) -> Collective:
    """Add up collectives of one kind and axis. Permutations have each pair once."""
    kind, axis, members, *_, asynchronous = same[-1]
    if kind == PERMUTATION:
        members = tuple(itertools.chain(*dict.fromkeys(pair for one in same for pair in pairs_of(one.members))))
    times, size, wire = (sum(values) for values in zip(*(one[3:6] for one in same), strict=True))
    return Collective(kind, axis, members, times, size, wire, asynchronous)


def _kind(operation: Operation, computation: str) -> str | None:
    """Return the kind of a collective, counted where it starts; None for any other operation."""
    kind = operation.kind.removesuffix("-start")
    if kind == "send":
        named = re.search(r'_xla_megascale_transfer_type="(\w+)"', operation.rest)
        return SENDS.get(named.group(1)) if named else None
    if kind not in KINDS:
        return None
    # on TPUs a reduce-scatter is printed as a fusion of an all-reduce and a slice
    return "reduce-scatter" if kind == "all-reduce" and computation.startswith("all-reduce-scatter") else kind


def _seen(operation: Operation, seen: set[tuple[str, str]]) -> bool:
    """Whether this collective was counted before: on TPUs, it is printed in each operation that overlaps with it."""
    chain, channel = re.search(r'chain_id="(\d+)"', operation.rest), re.search(r"channel_id=(\d+)", operation.rest)
    if chain is None or channel is None:
        return False
    key = (chain.group(1), channel.group(1))
    if key in seen:
        return True
    seen.add(key)
    return False


def _asynchronous(operation: Operation) -> bool:
    if operation.kind.endswith("-start"):
        return '"is_sync":true' not in operation.rest
    return "chain_id=" in operation.rest or operation.kind == "send"


def _one(
    kind: str,
    operation: Operation,
    computation: Mapping[str, Operation],
    groups: Sequence[Sequence[int]],
    mesh: Mapping[str, int],
    how: Runs,
) -> Collective:
    count = len(groups[0])
    given = sum(b.bytes for name in operation.operands if name in computation for b in computation[name].results)
    if not given:  # the operand is not printed, so use the size of the result
        given = sum(b.bytes for b in operation.results) // (count if kind == "all-gather" else 1)
    size = how.times * given * (count if kind == "all-gather" else 1)
    share = {"all-reduce": 2 * (count - 1) / count, PERMUTATION: 1.0}.get(kind, (count - 1) / count)
    pairs = kind == PERMUTATION
    axis = _axis(groups, mesh, pairs=pairs)
    axis = axis.removeprefix(PART) + BETWEEN if operation.kind == "send" else axis
    members = tuple(itertools.chain(*groups) if pairs else groups[0])
    asynchronous = how.asynchronous or _asynchronous(operation)
    return Collective(kind, axis, members, how.times, size, size * share, asynchronous)


def pairs_of(members: Sequence[int]) -> list[tuple[int, int]]:
    """Return the sender and receiver of each pair of permutations, from their `members`."""
    return list(zip(members[::2], members[1::2], strict=True))


def _between(kind: str, slices: Sequence[int]) -> list[list[int]]:
    """Return the groups of what hosts send: the first device of each slice."""
    return [[slices[0], other] for other in slices[1:]] if kind == PERMUTATION else [list(slices)]


def _axis(groups: Sequence[Sequence[int]], mesh: Mapping[str, int], *, pairs: bool) -> str:
    """Return the mesh axes along which the members of each group differ."""
    places = np.stack(
        np.unravel_index(np.asarray(groups, int), tuple(mesh.values())), axis=-1
    )  # [groups, members, axes]
    differ = (places != places[:, :1]).any(axis=(0, 1))
    names = [name for name, differs in zip(mesh, differ, strict=True) if differs]
    if not names:
        return ELSEWHERE
    whole = math.prod(mesh[name] for name in names)
    return ("" if whole == places.shape[1] or pairs else PART) + "+".join(names)


def _groups(operation: Operation, devices: int) -> list[list[int]]:
    """Return the device groups of a collective. Each pair of a permutation is a group, except those of one device."""
    rest = operation.rest
    pairs = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", rest)
    if pairs:
        listed = re.findall(r"\{(\d+),(\d+)\}", pairs.group(1))
        return [[int(a), int(b)] for a, b in listed if int(a) != int(b)]
    listing = re.search(r"replica_groups=\{((?:\{[\d,]*\},?)+)\}", rest)
    if listing:
        return [[int(x) for x in group.split(",")] for group in re.findall(r"\{([\d,]+)\}", listing.group(1))]
    ranges = re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", rest)
    if ranges:
        return _numbers(ranges.group(2), ranges.group(3)).reshape(_ints(ranges.group(1))).tolist()
    named = re.search(
        r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? \{([^}]*)\}", rest
    )
    if named:
        axes, shape, order, chosen = named.groups()
        return _named_axis_groups(axes, chosen, None if shape is None else _numbers(shape, order).ravel())
    return [list(range(devices))]


def _numbers(shape: str, order: str | None) -> np.ndarray:
    """Return 0, 1, ... in this shape, such as "4,2", transposed to an order, such as "1,0", if one is given."""
    numbers = np.arange(math.prod(_ints(shape))).reshape(_ints(shape))
    return numbers.transpose(_ints(order)) if order else numbers


def _named_axis_groups(axes: str, chosen: str, numbers: np.ndarray | None) -> list[list[int]]:
    """Return groups along the chosen named axes, such as "'a'=4,'b'=2" and "'b'"; "'a':(2)4" is a part of a, within 2.

    `numbers` are the devices in the order of the axes; None for 0, 1, ...
    """
    parts = {name: (int(before), int(size)) for name, before, size in re.findall(r"'([^']+)':\((\d+)\)(\d+)", chosen)}
    names = re.findall(r"'([^']+)'", chosen)
    shape, across = list[int](), list[int]()
    for name, text in re.findall(r"'([^']+)'=(\d+)", axes):
        before, part = parts.get(name, (1, int(text)))
        if name in names:
            across.append(len(shape) + 1)
        shape += [before, part, int(text) // before // part]
    placed = (np.arange(math.prod(shape)) if numbers is None else numbers).reshape(shape)
    others = [axis for axis in range(len(shape)) if axis not in across]
    return placed.transpose(others + across).reshape(-1, math.prod(shape[axis] for axis in across)).tolist()


def _ints(text: str) -> tuple[int, ...]:
    return tuple(int(item) for item in text.split(","))
