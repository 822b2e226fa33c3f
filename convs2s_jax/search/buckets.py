"""Grouping sentences into batches of few shapes, with little padding and few compilations."""

from collections.abc import Sequence
from typing import NamedTuple

from convs2s_jax.core.rows import round_up

NARROWEST = 16
"""Columns of the narrowest arrays."""


class Bucket(NamedTuple):
    """One batch.

    Attributes:
      rows: number of rows.
      width: number of columns.
      indices: indices of its sentences, at most `rows`.
    """

    rows: int
    width: int
    indices: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, int]:
        """Batches of equal shape share one compilation."""
        return self.rows, self.width

    @property
    def padded(self) -> list[int | None]:
        """Indices of the sentences, then None for each empty row."""
        return [*self.indices, *[None] * (self.rows - len(self.indices))]


def batches(
    lengths: Sequence[int], *, rows: int = 64, tokens: int = 16384, least_width: int = 16, least_rows: int = 1
) -> list[Bucket]:
    """Group sentences of similar length, longest first.

    With the longest first, a lack of memory shows at once, and estimates of the time left are not too low. Batches of
    equal width have the same number of rows, so they share one shape. If there is only one batch, its rows are the next
    power of two, or `least_rows`. Empty rows cost little, because the search drops them.

    Args:
      lengths: source length of each sentence, its end symbol counted; at least 1.
      rows: most sentences in a batch.
      tokens: most source tokens in a batch, padding counted; a sentence longer than that has a batch of its own.
      least_width: least width of the arrays, so that short sentences share one shape.
      least_rows: least number of rows of a batch that is the only one, so that small batches share one shape.

    Returns:
      Batches that hold every sentence once; among equal lengths in input order.

    Raises:
      ValueError: a length, `rows` or `tokens` below 1.
    """
    if rows < 1 or tokens < 1:
        raise ValueError(f"rows is {rows} and tokens is {tokens}: both are 1 or more")
    if any(length < 1 for length in lengths):
        raise ValueError("a length is below 1: every source has an end symbol")
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    plan, begin = [], 0
    while begin < len(order):
        width = width_of(max(lengths[order[begin]], least_width))
        most = min(rows, max(1, tokens // width))
        plan.append(Bucket(most, width, tuple(order[begin : begin + most])))
        begin += most
    if len(plan) == 1:
        (only,) = plan
        plan = [only._replace(rows=min(only.rows, max(least_rows, _power_of_two(len(only.indices)))))]
    return plan


def width_of(length: int) -> int:
    """The width of arrays for sources of this length, in steps of 8 up to 32, of 16 up to 128, then of an eighth up.

    Each width takes seconds to compile, while a few columns of padding only add a few percent of work. That is more
    where sentences are short: the step is at most half of the length from 16 on.
    """
    step = 8 if length <= 32 else max(16, _power_of_two(length) // 8)
    return round_up(length, step)


def widths_up_to(longest: int) -> tuple[int, ...]:
    """A few widths for sources of up to `longest` tokens, the end symbol counted: each twice as wide as the one before.

    Where every width has to be compiled beforehand, these are few; `width_of` pads less.
    """
    widths = [NARROWEST]
    while widths[-1] * 2 < longest:
        widths.append(widths[-1] * 2)
    return (*widths, width_of(longest)) if longest > NARROWEST else (NARROWEST,)


def _power_of_two(count: int) -> int:
    """The smallest power of two that is at least `count`."""
    return 1 << (count - 1).bit_length()
