"""Grouping sentences into batches of few shapes, with little padding and few compilations."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from convs2s_jax.core.config import check, record
from convs2s_jax.core.rows import round_up

NARROWEST = 16
"""Columns of the narrowest arrays."""


@record(kw_only=False)
class Sizes:
    """Axes of a request.

    Attributes:
      prefix: P, tokens of a prefix.
      phrases: C, phrases of a sentence.
      phrase: K, tokens of a phrase.
    """

    prefix: int
    phrases: int
    phrase: int


NO_AXES = Sizes(0, 0, 0)
"""Of requests without prefixes and phrases."""


def at_least(axes: Sizes, least: Sizes) -> Sizes:
    """Axes that are as large as both."""
    return Sizes(max(axes.prefix, least.prefix), max(axes.phrases, least.phrases), max(axes.phrase, least.phrase))


@record
class Batching:
    """How sentences are put into batches. Results do not depend on it; time, memory and compilations do.

    The lower bounds let small batches share a program that is compiled once.

    Attributes:
      size: most sentences in a batch.
      tokens: most source tokens in a batch, padding counted; a sentence longer than that has a batch of its own.
      min_width: source arrays are at least this wide.
      min_rows: a batch that is the only one has at least this many rows.
      min_axes: the arrays of prefixes and phrases are at least this large.
      word_sizes: with a shortlist, the sizes that the words of a batch may have, ascending, the whole vocabulary last;
        if empty, those of `shortlist.union_size`.
    """

    size: int = 64
    tokens: int = 16384
    min_width: int = NARROWEST
    min_rows: int = 1
    min_axes: Sizes = NO_AXES
    word_sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name in ("size", "tokens", "min_width", "min_rows"):
            check(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}: use 1 or more")
        ascending = all(one <= other for one, other in itertools.pairwise((1, *self.word_sizes)))
        check(ascending, f"word_sizes is {list(self.word_sizes)}: give ascending sizes, from 1")


DEFAULT_BATCHING = Batching()


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


def batches(lengths: Sequence[int], batching: Batching = DEFAULT_BATCHING) -> list[Bucket]:
    """Group sentences of similar length, longest first.

    With the longest first, a lack of memory shows at once, and estimates of the time left are not too low. Batches of
    equal width have the same number of rows, so they share one shape. If there is only one batch, its rows are the next
    power of two, or `min_rows`. Empty rows cost little, because the search drops them.

    Args:
      lengths: source length of each sentence, its end symbol counted; at least 1.
      batching: how many sentences and tokens a batch has, and lower bounds of its arrays.

    Returns:
      Batches that hold every sentence once; among equal lengths in input order.

    Raises:
      ValueError: a length below 1.
    """
    if any(length < 1 for length in lengths):
        raise ValueError("a length is below 1: every source has an end symbol")
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    plan, begin = [], 0
    while begin < len(order):
        width = width_of(max(lengths[order[begin]], batching.min_width))
        most = min(batching.size, max(1, batching.tokens // width))
        plan.append(Bucket(most, width, tuple(order[begin : begin + most])))
        begin += most
    if len(plan) == 1:
        (only,) = plan
        plan = [only._replace(rows=min(only.rows, max(batching.min_rows, _power_of_two(len(only.indices)))))]
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
