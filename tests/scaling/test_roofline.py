"""The bound of a step, against sums by hand."""

import dataclasses
import itertools
from types import SimpleNamespace

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.scaling import chips, roofline
from convs2s_jax.scaling.chips import CHIPS, Chip
from convs2s_jax.scaling.collectives import Collective
from convs2s_jax.training.flops import Flops

CHIP = Chip(
    name="test",
    peaks={"bfloat16": 100.0},
    memory=1.0,
    memory_bandwidth=10.0,
    link=2.0,
    together=0,
    network=0.5,
    source="-",
)
LINE = [(0, ()), (0, ())]


def exchange(wire, *, asynchronous=False, kind="all-reduce", members=(0, 1), size=8):
    return Collective(kind, "data", members, 1, size, wire, asynchronous)


def work(model, executed, memory, collectives=(), *, times=1, products=0):
    """What the bound reads of a compiled program, for two devices."""
    return SimpleNamespace(
        flops=Flops(2 * model, 2 * (executed - model)),
        memory_traffic=memory,
        product_traffic=products,
        collectives=collectives,
        times=times,
    )


def step(*programs, chip=CHIP):
    return roofline.step(programs, chip, LINE, dtype="bfloat16", tokens=100)


def test_arithmetic_and_memory_overlap():
    assert step(work(200, 200, 10)).seconds == 2.0
    assert step(work(200, 200, 50)).seconds == 5.0


def test_operations_of_a_gpu_without_products_take_turns_with_those_that_have_them():
    chip = dataclasses.replace(CHIP, in_turn=True)
    assert step(work(200, 200, 50, products=30), chip=chip).seconds == 5.0  # 3 s of memory, 2 s alone
    assert step(work(400, 400, 50, products=30), chip=chip).seconds == 6.0  # 4 s of arithmetic
    assert step(work(400, 400, 50, products=30)).seconds == 5.0
    assert step(work(0, 0, 50), chip=chip).seconds == 5.0


def test_programs_and_their_repetitions_follow_each_other():
    bound = step(work(200, 200, 0), work(100, 100, 0, times=3), work(0, 0, 10))
    assert (bound.seconds, bound.compute, bound.memory) == (6.0, 5.0, 1.0)


def test_a_synchronous_exchange_adds_its_time_and_an_asynchronous_one_what_nothing_hides():
    sync, hidden, longer = exchange(6), exchange(3, asynchronous=True), exchange(10, asynchronous=True)
    assert step(work(200, 200, 0, (sync,))).exposed == 3.0
    assert step(work(200, 200, 0, (hidden,))).exposed == 0.0
    bound = step(work(200, 200, 0, (sync, longer)))
    assert (bound.links, bound.exposed, bound.seconds) == (8.0, 6.0, 8.0)


def test_what_is_computed_twice_takes_time_and_is_no_work_of_the_model():
    bound = step(work(200, 300, 0))
    assert (bound.seconds, bound.mfu, bound.tokens_per_second) == (3.0, 200 / 300, 100 / 3)


GRID = [(0, (x, y, 0)) for x in range(16) for y in range(16)]
SMALL = [(0, (x, y, 0)) for x in range(4) for y in range(4)]
V5E = CHIPS["v5e"]


def slice_of(*sizes):
    """The places of a slice of these sizes."""
    return [(0, place) for place in itertools.product(*map(range, sizes))]


def line_of(size):
    """Places along the first of three axes."""
    return slice_of(size, 1, 1)


@pytest.mark.parametrize(
    ("chip", "members", "places", "links"),
    [
        (V5E, GRID, GRID, 4),  # two axes, closed to rings
        (V5E, GRID[:16], GRID, 2),  # one axis
        (V5E, GRID[:4], GRID, 1),  # a part of an axis is no ring
        (V5E, SMALL, SMALL, 2),  # two axes of 4: v5e closes those of 16
        (CHIPS["v5p"], line_of(4), slice_of(4, 4, 4), 2),
        (CHIPS["v5p"], line_of(8), slice_of(8, 4, 12), 2),
        (CHIPS["v4"], slice_of(4, 4, 4), slice_of(4, 4, 4), 6),
        (CHIPS["v4"], line_of(4), slice_of(4, 4, 2), 1),  # v4 and v5p close all axes, of multiples of 4, or none
        (CHIPS["v5p"], line_of(4), slice_of(4, 4, 6), 1),
        (CHIPS["v5p"], line_of(4), line_of(4), 1),
        (CHIPS["v5p"], line_of(2), slice_of(4, 4, 4), 1),
        (CHIPS["h100"], [(0, ()), (0, ())], [(0, ())] * 8, 1),
    ],
)
def test_an_exchange_has_the_links_of_the_axes_it_goes_along(chip, members, places, links):
    assert roofline.bandwidth(chip, members, places) == links * chip.link


def test_over_slices_the_parts_of_a_slice_go_over_the_network():
    """Four devices in two slices: reduced within, summed across by halves, gathered within."""
    places = [(0, ()), (0, ()), (1, ()), (1, ())]
    within, between = 2 * 8 * (1 / 2) / 2.0, 2 * 8 / 2 * (1 / 2) / 0.5
    seconds = roofline.exchange_seconds(exchange(12, members=(0, 1, 2, 3), size=8), CHIP, places)
    assert seconds == pytest.approx(within + between)
    alone = roofline.exchange_seconds(exchange(8, members=(0, 2), size=8), CHIP, places)
    assert alone == pytest.approx(2 * 8 * (1 / 2) / 0.5)


def test_a_permutation_takes_as_long_as_its_slowest_pair():
    """In a ring over two machines the second pair goes over the network; in a slice over one axis, not over two."""
    chip, places = CHIPS["h100"], [(0, ()), (0, ()), (1, ()), (1, ())]
    ring = exchange(12, members=(0, 1, 1, 2, 2, 3, 3, 0))._replace(kind="collective-permute")
    assert roofline.exchange_seconds(ring, chip, places) == pytest.approx(12 / chip.network)
    within = ring._replace(members=(0, 1, 2, 3))
    assert roofline.exchange_seconds(within, chip, places) == pytest.approx(12 / chip.link)
    steps = ring._replace(members=(0, 5, 0, 1))  # to (1, 1), and to (0, 1)
    assert roofline.exchange_seconds(steps, V5E, SMALL) == pytest.approx(12 / V5E.link)


def test_a_dtype_that_the_table_lacks_is_refused():
    with pytest.raises(UserError, match="no rate of test for float64"):
        CHIP.peak("float64")


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("TPU v5 lite", "v5e"),
        ("TPU v5", "v5p"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-PCIE-40GB", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", None),
        ("cpu", None),
    ],
)
def test_devices_find_their_chip(kind, name):
    found = chips.of_device(kind)
    assert (found.name if found else None) == name
