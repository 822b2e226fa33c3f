"""Roofline model of the time of an update, a lower bound from rates and not a simulation.

For each program of an update, with FLOPs F, bytes of memory traffic M, and collectives of w_i seconds each on its
links:

    busy = max(F / peak, M / bandwidth)         arithmetic and memory overlap perfectly (TPU, CPU)
    busy = max(F / peak, P / bandwidth) + (M - P) / bandwidth                           (GPU)
    exposed = sum_sync w_i + max(0, sum_async w_i - busy)
    step = sum over programs (busy + exposed)

A GPU runs one operation after another, and operations without products do not use its matrix units. P are the bytes of
operations with products, and memory only overlaps with arithmetic in these.

The time of a collective is its bytes on the wire divided by the bandwidth of the links along its mesh axis, without
latency. A collective that the compiler made asynchronous is hidden as far as there is any other work. MFU is model
FLOPs / (peak * step).
"""

from collections.abc import Sequence
from typing import NamedTuple

from convs2s_jax.core.config import check
from convs2s_jax.scaling.chips import Chip
from convs2s_jax.scaling.collectives import PERMUTATION, Collective, pairs_of
from convs2s_jax.scaling.programs import Compiled

Place = tuple[int, tuple[int, ...]]
"""Index of a device's slice or machine, and its coordinates on the torus there."""


class Step(NamedTuple):
    """The time of an update in seconds, and what follows from it.

    Attributes:
      compute: seconds of arithmetic alone.
      memory: seconds of memory traffic alone.
      links: seconds of all collectives.
      exposed: seconds of collectives that are not hidden.
      seconds: seconds of the whole update.
      tokens_per_second: target tokens/s of full batches, all devices together.
      mfu: model FLOPs utilisation, as a fraction of the chip's peak over the whole update.
    """

    compute: float
    memory: float
    links: float
    exposed: float
    seconds: float
    tokens_per_second: float
    mfu: float


def step(programs: Sequence[Compiled], chip: Chip, places: Sequence[Place], *, dtype: str, tokens: int) -> Step:
    """Compute the bound of an update.

    Args:
      programs: the programs of an update.
      chip: its rates.
      places: places of all devices, in the order of the mesh.
      dtype: dtype of the model's products.
      tokens: target tokens of the whole update.

    Raises:
      UserError: the table of chips lacks the rate of the dtype.
    """
    peak = chip.peak(dtype) * len(places)
    compute = memory = links = exposed = seconds = 0.0
    for each in programs:
        arithmetic, traffic = each.flops.executed / peak, each.memory_traffic / chip.memory_bandwidth
        link_seconds = {True: 0.0, False: 0.0}
        for collective in each.collectives:
            link_seconds[collective.asynchronous] += exchange_seconds(collective, chip, places)
        alone = (each.memory_traffic - each.product_traffic) / chip.memory_bandwidth if chip.in_turn else 0.0
        busy = max(arithmetic, traffic - alone) + alone
        not_hidden = link_seconds[False] + max(0.0, link_seconds[True] - busy)
        compute += each.times * arithmetic
        memory += each.times * traffic
        links += each.times * sum(link_seconds.values())
        exposed += each.times * not_hidden
        seconds += each.times * (busy + not_hidden)
    model = sum(each.times * each.flops.model for each in programs)
    return Step(compute, memory, links, exposed, seconds, tokens / seconds, model / (peak * seconds))


def check_network(chip: Chip, places: Sequence[Place]) -> None:
    """Raise UserError if devices in these places need a network whose rate the table of chips lacks."""
    slices = len({number for number, _ in places})
    check(
        slices == 1 or chip.network > 0,
        f"the mesh spans {slices} slices, but the table of chips has no rate of the network of {chip.name}: use one "
        "slice",
    )


def exchange_seconds(collective: Collective, chip: Chip, places: Sequence[Place]) -> float:
    """Return the seconds of collectives on the links; over several slices, those within a slice plus those between.

    A permutation takes as long as its slowest pair.
    """
    members = [places[member] for member in collective.members]
    slices = len({number for number, _ in members})
    if len(members) < 2:
        return 0.0
    if slices == 1 and collective.kind != PERMUTATION:
        return collective.wire / bandwidth(chip, members, places)
    if collective.kind == PERMUTATION:
        pairs = [(places[one], places[other]) for one, other in pairs_of(collective.members)]
        return collective.wire / min(
            bandwidth(chip, pair, places) if pair[0][0] == pair[1][0] else chip.network for pair in pairs
        )
    within = len(members) // slices
    passes = 2 if collective.kind == "all-reduce" else 1
    between = passes * collective.size / within * (slices - 1) / slices / chip.network
    first = [member for member in members if member[0] == members[0][0]]
    if within < 2:
        return between
    return between + passes * collective.size * (within - 1) / within / bandwidth(chip, first, places)


def bandwidth(chip: Chip, members: Sequence[Place], places: Sequence[Place]) -> float:
    """Return the bytes/s that one device of a group sends within a slice.

    On a torus, it uses both directions of each axis along which members differ, or one if the axis is not a ring.
    """
    if not chip.axes:
        return chip.link
    total = 0.0
    sizes = [1 + max(place[1][axis] for place in places) for axis in range(chip.axes)]
    for axis, ring in enumerate(chip.rings(sizes)):
        span = len({place[1][axis] for place in members})
        if span > 1:
            total += chip.link * (2 if ring and span == sizes[axis] else 1)
    return total or chip.link
