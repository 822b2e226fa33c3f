"""Batching: group sentences into batches of few shapes, with little padding and few compilations."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from convs2s_jax.core.config import check, record
from convs2s_jax.core.rows import round_up

NARROWEST = 16
"""Minimum width of arrays."""


@record(kw_only=False)
class Sizes:
    """Sizes of the axes of a request.

    Attributes:
      prefix: P, tokens of a prefix.
      phrases: C, phrases of a sentence.
      phrase: K, tokens of a phrase.
    """

    prefix: int
    phrases: int
    phrase: int


NO_AXES = Sizes(0, 0, 0)
"""The axes of requests without prefixes and phrases."""


def at_least(axes: Sizes, least: Sizes) -> Sizes:
    """Return the larger of both, axis by axis."""
    return Sizes(max(axes.prefix, least.prefix), max(axes.phrases, least.phrases), max(axes.phrase, least.phrase))


@record
class Batching:
    """How sentences are batched. Results do not depend on it, but time, memory and the number of compilations do.

    The lower bounds let small batches share one compiled program.

    Attributes:
      size: maximum number of sentences in a batch.
      tokens: maximum number of source tokens in a batch, including padding; a longer sentence gets its own batch.
      min_width: minimum width of source arrays.
      min_rows: minimum number of rows of a batch that is the only one.
      min_axes: minimum sizes of the arrays of prefixes and phrases; room for phrases makes every search a constrained
        one.
      word_sizes: with a shortlist, the allowed sizes of a batch's words, in ascending order, the whole vocabulary last;
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
        check(ascending, f"word_sizes is {list(self.word_sizes)}: use sizes of at least 1, in ascending order")


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
        """Shape of the batch; batches of equal shape share one compilation."""
        return self.rows, self.width

    @property
    def padded(self) -> list[int | None]:
        """The indices of the sentences, then None for each empty row."""
        return [*self.indices, *[None] * (self.rows - len(self.indices))]


def batches(lengths: Sequence[int], batching: Batching = DEFAULT_BATCHING) -> list[Bucket]:
    """Group sentences of similar length into batches, longest first.

    With the longest first, running out of memory shows at once, and estimates of the remaining time are not too low.
    Batches of equal width have the same number of rows, so they share one shape. If there is only one batch, its number
    of rows is the next power of two, or `min_rows`. Empty rows cost little, because the search drops them.

    Args:
      lengths: source length of each sentence, including its end symbol; at least 1.
      batching: the maximum batch size and the minimum sizes of its arrays.

    Returns:
      Batches that contain every sentence once. Sentences of equal length stay in input order.

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


def numbered(plan: Sequence[Bucket], sentences: Sequence[int]) -> list[Bucket]:
    """Return a plan whose indices into `sentences` are replaced by the entries of `sentences`."""
    return [bucket._replace(indices=tuple(sentences[i] for i in bucket.indices)) for bucket in plan]


def width_of(length: int) -> int:
    """Round a source length up to an array width, a multiple of 8 up to 32, of 16 up to 128, then of larger steps.

    The larger steps are an eighth of the next power of two.
    Each width takes seconds to compile, while a few columns of padding only add a few percent of work. The share is
    larger for short sentences, where the step is at most half of the length from 16 on.
    """
    step = 8 if length <= 32 else max(16, _power_of_two(length) // 8)
    return round_up(length, step)


def widths_up_to(longest: int) -> tuple[int, ...]:
    """Return a few widths for sources of up to `longest` tokens, including the end symbol, each twice the previous one.

    They keep the number of compilations low when every width is compiled in advance; `width_of` pads less.
    """
    widths = [NARROWEST]
    while widths[-1] * 2 < longest:
        widths.append(widths[-1] * 2)
    return (*widths, width_of(longest)) if longest > NARROWEST else (NARROWEST,)


def _power_of_two(count: int) -> int:
    """Return the smallest power of two that is at least `count`."""
    return 1 << (count - 1).bit_length()
