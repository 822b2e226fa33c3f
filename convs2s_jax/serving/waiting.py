"""Lines that wait for their translation, and which of them make up a batch."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

FEWEST = 8
"""Lines that are worth a second batch beside one in progress."""
WIDER = 2
"""How many times as wide as the oldest line of a batch others may be."""


@dataclass(frozen=True, eq=False)
class Item:
    """A line that waits for its translation.

    Attributes:
      key: lines with equal keys can share a batch; hashable.
      width: columns that its source needs.
      line: what `run` needs of it.
      answer: its result.
      arrived: when it came, in seconds of the clock.
    """

    key: Any
    width: int
    line: Any
    answer: "asyncio.Future[Any]"
    arrived: float


def choose(waiting: Sequence[Item], rows: int) -> list[Item]:
    """The lines of the next batch: the oldest, and those of its key that are nearest to it in width.

    Lines more than `WIDER` times as wide would make it slow; they are the oldest in their turn, so none waits forever.
    It may be fewer than there are (`filled`).

    Args:
      waiting: at least one line, oldest first.
      rows: most lines of a batch.
    """
    oldest = waiting[0]
    fitting = [item for item in waiting if item.key == oldest.key and item.width <= WIDER * oldest.width]
    nearest = sorted(fitting, key=lambda item: abs(item.width - oldest.width))[:rows]
    return nearest[: filled(len(nearest))]


def filled(lines: int) -> int:
    """How many of these lines to take, so that few rows of a batch are empty.

    A batch costs as much as one of the next power of two: 40 lines cost what 64 do, and more than 32 and 8. So it is a
    power of two, or at most an eighth less; `FEWEST` lines and less stay together.
    """
    power = 1 << lines.bit_length() - 1
    return lines if lines <= FEWEST or lines >= 2 * power - power // 4 else power
