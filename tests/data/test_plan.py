"""The batch plan: every pair once, in a shape that holds it, the same everywhere."""

import functools
import itertools
import tracemalloc

import numpy as np
import pytest

from convs2s_jax.data import shapes as shapes_module
from convs2s_jax.data.plan import padding, plan_all, plan_epoch, usable
from convs2s_jax.data.shapes import Shape, choose_shapes


def corpus(n=700, seed=0):
    rng = np.random.default_rng(seed)
    src = rng.integers(2, 40, n)
    return src, np.maximum(2, src + rng.integers(-8, 9, n))


@functools.cache
def chosen(rows, count, tokens):
    rows = np.frombuffer(rows, int)
    src, tgt = corpus()
    return choose_shapes(src[rows], tgt[rows], tokens=tokens, count=count)


def planned(*, seed=1, epoch=1, rows=None, count=6, tokens=300):
    src, tgt = corpus()
    rows = np.arange(len(src)) if rows is None else rows
    shapes = chosen(rows.tobytes(), count, tokens)
    return plan_epoch(src, tgt, rows, shapes, seed=seed, epoch=epoch)


def content(plan):
    return [(batch.shape, batch.rows.tolist()) for batch in plan.batches]


def assert_fits(plan, src, tgt):
    for batch in plan.batches:
        shape = plan.shapes[batch.shape]
        assert 1 <= len(batch.rows) <= shape.rows
        assert src[batch.rows].max() <= shape.src
        assert tgt[batch.rows].max() <= shape.tgt


@pytest.mark.parametrize("tokens", [40, 300, 5000])
@pytest.mark.parametrize("count", [1, 6, 12])
def test_every_pair_is_used_once_in_a_shape_that_holds_it(count, tokens):
    src, tgt = corpus()
    rows = np.flatnonzero(src % 5 != 0)
    plan = planned(rows=rows, count=count, tokens=tokens)
    assert sorted(np.concatenate([batch.rows for batch in plan.batches]).tolist()) == rows.tolist()
    assert_fits(plan, src, tgt)


def test_planning_takes_at_most_20_bytes_a_pair(monkeypatch):
    src, tgt = (np.tile(side, 200).astype(np.int32) for side in corpus())
    rows, *_ = usable(src, tgt, max_source=38, max_target=40)
    shapes = chosen(np.arange(700).tobytes(), 6, 5000)
    first = content(plan_epoch(src, tgt, rows, shapes, seed=1, epoch=1))
    monkeypatch.setattr(shapes_module, "BLOCK", 1001)  # their number is not a multiple of it
    tracemalloc.start()
    plan = plan_epoch(src, tgt, rows, shapes, seed=1, epoch=1)
    peak = tracemalloc.get_traced_memory()[1] / len(rows)
    tracemalloc.stop()
    assert content(plan) == first
    assert peak < 20


def test_each_epoch_and_seed_has_its_own_order():
    """Pairs are shuffled before they are cut, and batches of one shape are spread over the epoch."""
    rows = planned(count=1).batches[0].rows
    assert rows.tolist() != sorted(rows.tolist())
    shapes = [batch.shape for batch in planned().batches]
    assert 1 + sum(a != b for a, b in itertools.pairwise(shapes)) > len(shapes) / 2
    first = content(planned())
    assert content(planned()) == first
    for other in (content(planned(epoch=2)), content(planned(seed=2))):
        assert sorted(shape for shape, _ in other) == sorted(shape for shape, _ in first)
        assert other != first
        # not only the batches' order: other pairs meet
        assert {frozenset(rows) for _, rows in other}.isdisjoint(frozenset(rows) for _, rows in first if len(rows) > 1)
    assert content(planned(seed=1, epoch=2)) != content(planned(seed=2, epoch=1))


def test_leftovers_move_on_so_that_one_batch_at_most_is_not_full():
    for epoch in range(5):
        plan = planned(epoch=epoch)
        partial = [batch for batch in plan.batches if len(batch.rows) < plan.shapes[batch.shape].rows]
        assert len(partial) <= 1
        assert all(batch.shape == len(plan.shapes) - 1 for batch in partial)


def test_leftovers_stay_where_no_larger_shape_holds_them():
    shapes = (Shape(2, 2, 4), Shape(3, 2, 4), Shape(2, 9, 3))  # the last two do not fit in one another
    src = np.array([2] * 5 + [3] * 6 + [2] * 4)
    tgt = np.array([2] * 5 + [2] * 6 + [9] * 4)
    plan = plan_epoch(src, tgt, np.arange(15), shapes, seed=1, epoch=1)
    # one pair of the first moves to the second: 7 there
    assert sorted((batch.shape, len(batch.rows)) for batch in plan.batches) == [(0, 4), (1, 3), (1, 4), (2, 1), (2, 3)]
    assert_fits(plan, src, tgt)


def test_padding_is_the_share_of_cells_without_a_token():
    src, tgt = np.array([2, 3, 5]), np.array([4, 4, 6])
    shapes = (Shape(3, 4, 2), Shape(5, 6, 2))
    plan = plan_epoch(src, tgt, np.arange(3), shapes, seed=1, epoch=1)
    # cells: 2 rows of 3 + 4, and 2 rows of 5 + 6 of which one is empty; tokens: 2 + 4 + 3 + 4 + 5 + 6
    assert padding(src, tgt, np.arange(3), plan) == pytest.approx(1 - 24 / 36)
    nothing = np.array([], int)
    assert plan_all(nothing, nothing, ()).batches == ()
    assert padding(nothing, nothing, nothing, plan_all(nothing, nothing, ())) == 0


def test_what_cannot_be_trained_on_is_counted_by_reason():
    src = np.array([1, 5, 5, 11, 10, 11, 1, 1])
    tgt = np.array([5, 1, 5, 5, 20, 21, 99, 1])
    rows, empty, too_long = usable(src, tgt, max_source=10, max_target=20)
    assert rows.tolist() == [2, 4]
    assert empty == 4  # one that is too long too among them
    assert too_long == 2


def test_validation_covers_every_row_in_a_fixed_order():
    src, tgt = corpus()
    src[3] = tgt[5] = 1  # an empty side is validated all the same
    shapes = choose_shapes(src, tgt, tokens=300, count=4)
    plan = plan_all(src, tgt, shapes)
    assert sorted(np.concatenate([batch.rows for batch in plan.batches]).tolist()) == list(range(len(src)))
    assert_fits(plan, src, tgt)
    assert len(plan.shapes) <= 4
    assert content(plan) == content(plan_all(src, tgt, shapes))
    first = [batch for batch in plan.batches if batch.shape == 0]
    assert np.all(np.diff(np.concatenate([batch.rows for batch in first])) > 0)
