"""Waiting lines, and the choice of those that make up a batch."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

FEWEST = 8
"""Number of lines that justify a second batch beside one in progress."""
WIDER = 2
"""Maximum width of a line in a batch, relative to its oldest line."""


@dataclass(frozen=True, eq=False)
class Item:
    """A line that waits for its translation.

    Attributes:
      key: hashable; lines with equal keys can share a batch.
      width: width of the source array that it needs.
      line: the argument for `run`.
      answer: future of its result.
      arrived: time of its arrival, in seconds of the monotonic clock.
    """

    key: Any
    width: int
    line: Any
    answer: "asyncio.Future[Any]"
    arrived: float


def choose(waiting: Sequence[Item], rows: int) -> list[Item]:
    """Choose the next batch: the oldest line, and those with the same key that are closest to it in width.

    Lines more than `WIDER` times as wide would slow the batch down. They become the oldest in turn, so none waits
    forever. Some lines may be left for a later batch to avoid empty rows (`filled`).

    Args:
      waiting: at least one line, oldest first.
      rows: maximum number of lines per batch.
    """
    oldest = waiting[0]
    fitting = [item for item in waiting if item.key == oldest.key and item.width <= WIDER * oldest.width]
    nearest = sorted(fitting, key=lambda item: abs(item.width - oldest.width))[:rows]
    return nearest[: filled(len(nearest))]


def filled(lines: int) -> int:
    """Number of these lines to take, so that few rows of the batch are empty.

    A batch costs as much as one of the next power of two: 40 lines cost as much as 64, and more than 32 and 8. So the
    result is a power of two, or at most an eighth less. `FEWEST` lines or fewer stay together.
    """
    power = 1 << lines.bit_length() - 1
    return lines if lines <= FEWEST or lines >= 2 * power - power // 4 else power
