"""Batch shapes: against exhaustive search, and within the budget."""

import itertools

import numpy as np
import pytest

from convs2s_jax.data import shapes
from convs2s_jax.data.shapes import Shape, choose_shapes, fitting, rounded, rows_within


def total_cost(src, tgt, rectangles):
    """S + T of the smallest rectangle that holds each pair, summed; infinite where one holds none."""
    return sum(
        min((s + t for s, t in rectangles if a <= s and b <= t), default=float("inf"))
        for a, b in zip(src, tgt, strict=True)
    )


def cheapest(src, tgt, count, *, always=()):
    """The least cost of any `count` rectangles, those of `always` among them, by trying all."""
    corners = list(itertools.product(sorted(set(src.tolist())), sorted(set(tgt.tolist()))))
    chosen = itertools.combinations_with_replacement(corners, count - len(always))
    return min(total_cost(src, tgt, [*always, *some]) for some in chosen)


def rectangles_of(src, tgt, count):
    return [(s, t) for s, t, _ in choose_shapes(src, tgt, tokens=100, count=count)]


def pairs(seed, n=12, longest=12, levels=3):
    """Random lengths with few distinct values on each side, so that all rectangles can be tried."""
    rng = np.random.default_rng(seed)
    return tuple(rng.choice(rng.choice(np.arange(2, longest), levels, replace=False), n) for _ in "st")


@pytest.mark.parametrize("seed", range(10))
def test_two_shapes_are_the_best_two_of_which_one_holds_everything_and_enough_waste_nothing(seed):
    src, tgt = pairs(seed)
    everything = (src.max(), tgt.max())
    assert total_cost(src, tgt, rectangles_of(src, tgt, 1)) == total_cost(src, tgt, [everything])
    assert total_cost(src, tgt, rectangles_of(src, tgt, 2)) == cheapest(src, tgt, 2, always=[everything])
    assert total_cost(src, tgt, rectangles_of(src, tgt, 9)) == src.sum() + tgt.sum()


def test_choosing_anew_improves_on_the_greedy_choice():
    src = tgt = np.array([2, 5, 7, 10])
    # 5 saves most alone, but beside 2 it is better to have 7
    everything = (10, 10)
    first = min([(2, 2), (5, 5), (7, 7)], key=lambda one: total_cost(src, tgt, [everything, one]))
    second = min([(2, 2), (5, 5), (7, 7)], key=lambda one: total_cost(src, tgt, [everything, first, one]))
    greedy, best = total_cost(src, tgt, [everything, first, second]), cheapest(src, tgt, 3)
    assert best < greedy  # else this corpus shows nothing
    assert total_cost(src, tgt, rectangles_of(src, tgt, 3)) == best


@pytest.mark.parametrize("count", [1, 3, 12])
def test_every_pair_has_a_shape_within_the_budget(count):
    rng = np.random.default_rng(count)
    src, tgt = rng.geometric(0.05, 500) + 1, rng.geometric(0.05, 500) + 1
    tokens = int(max(src.max(), tgt.max())) + 5
    shapes = choose_shapes(src, tgt, tokens=tokens, count=count)
    assert 1 <= len(shapes) <= count
    assert len(set(shapes)) == len(shapes)
    assert list(shapes) == sorted(shapes, key=lambda shape: shape.src + shape.tgt)
    assert all(shape.rows >= 1 and shape.rows * max(shape.src, shape.tgt) <= tokens for shape in shapes)
    for a, b, i in zip(src, tgt, fitting(src, tgt, shapes), strict=True):
        holding = [shape.src + shape.tgt for shape in shapes if a <= shape.src and b <= shape.tgt]
        assert a <= shapes[i].src
        assert b <= shapes[i].tgt
        assert shapes[i].src + shapes[i].tgt == min(holding)


def test_rows_are_a_multiple_of_8_where_more_than_8_fit():
    assert [rows_within(tokens, 10) for tokens in (5, 10, 75, 89, 90, 159, 160, 247)] == [1, 1, 7, 8, 8, 8, 16, 24]
    src, tgt = np.array([3, 3, 3, 50]), np.array([4, 4, 4, 9])  # longer than the budget: a batch of its own
    assert choose_shapes(src, tgt, tokens=40, count=2) == (Shape(3, 4, 4), Shape(50, 9, 1))


def test_no_pairs_need_no_shapes_and_a_pair_that_none_holds_is_an_error():
    assert choose_shapes(np.array([], int), np.array([], int), tokens=100, count=3) == ()
    with pytest.raises(ValueError, match="do not fit into any shape"):
        fitting(np.array([2, 9]), np.array([2, 2]), (Shape(3, 3, 8),))


@pytest.mark.parametrize(("rows", "length"), [(1, 1), (8, 1), (1, 16), (16, 8), (8, 128), (7, 5)])
@pytest.mark.parametrize("seed", range(3))
def test_rounded_shapes_are_multiples_that_hold_all_pairs_within_budget_and_limits(seed, rows, length):
    """At most so many shapes as before; a limit that is no multiple stays a length."""
    src, tgt = np.random.default_rng(seed).choice([2, 3, 9, 17, 24, 33, 50, 57, 60], (2, 500))
    tight, most, tokens = choose_shapes(src, tgt, tokens=900, count=6), (60, 62), 900
    shapes = rounded(tight, tokens=tokens, rows=rows, length=length, most=most)
    if rows == length == 1:
        assert shapes == tight
    assert len(set(shapes)) == len(shapes) <= len(tight)
    assert list(shapes) == sorted(shapes, key=lambda shape: (shape.src + shape.tgt, shape))
    for shape in shapes:
        assert shape.rows % rows == 0
        assert all((n % length == 0 and n < limit) or n == limit for n, limit in zip(shape[:2], most, strict=True))
        assert shape.rows * max(shape[:2]) <= tokens or shape.rows == rows
        assert shape.rows + 2 * max(rows, 8) > tokens // max(shape[:2])  # no more is given away than a multiple
    home = np.array(shapes)[fitting(src, tgt, shapes)]
    assert (home[:, 0] >= src).all()
    assert (home[:, 1] >= tgt).all()


def test_levels_are_lengths_that_occur_or_their_quantiles(monkeypatch):
    """Against numpy's quantiles; blocks change nothing."""
    lengths = np.random.default_rng(0).poisson(80, 3000).astype(np.int32)
    assert len(np.unique(lengths)) > shapes.LEVELS
    expected = np.unique(np.quantile(lengths, np.linspace(0, 1, shapes.LEVELS), method="higher"))
    found = choose_shapes(lengths, lengths[::-1], tokens=4000, count=4)
    monkeypatch.setattr(shapes, "BLOCK", 7)
    np.testing.assert_array_equal(shapes._levels(lengths), expected)
    np.testing.assert_array_equal(shapes._levels(lengths % 9), range(9))
    assert choose_shapes(lengths, lengths[::-1], tokens=4000, count=4) == found
