"""Dynamic batching: lines of different requests that arrive within milliseconds are translated together."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

SMALLEST_SECOND = 8
"""Number of lines that justify a second batch beside one in progress."""
WIDEST_RATIO = 2
"""Maximum width of a line in a batch, relative to its oldest line."""
IN_FLIGHT = 2
"""Batches in progress at once, as in `search.spread`. One is computed while the host works on the other."""
RECENT_SECONDS = 2.0
"""Seconds over which the maximum number of concurrent lines is tracked."""
RETURN_SECONDS = 0.02
"""Seconds to wait for clients to send their next line, after the end of a batch and after each line that follows."""
LOOP_TURNS = 4
"""Event loop iterations from bytes on a socket to a waiting line."""


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

    Lines more than `WIDEST_RATIO` times as wide would slow the batch down. They become the oldest in turn, so none
    waits forever. Some lines may be left for a later batch to avoid empty rows (`filled`).

    Args:
      waiting: at least one line, oldest first.
      rows: maximum number of lines per batch.
    """
    oldest = waiting[0]
    fitting = [item for item in waiting if item.key == oldest.key and item.width <= WIDEST_RATIO * oldest.width]
    nearest = sorted(fitting, key=lambda item: abs(item.width - oldest.width))[:rows]
    return nearest[: filled(len(nearest))]


def filled(lines: int) -> int:
    """Number of these lines to take, so that few rows of the batch are empty.

    A batch costs as much as one of the next power of two: 40 lines cost as much as 64, and more than 32 and 8. So the
    result is a power of two, or at most an eighth less. `SMALLEST_SECOND` lines or fewer stay together.
    """
    power = 1 << lines.bit_length() - 1
    return lines if lines <= SMALLEST_SECOND or lines >= 2 * power - power // 4 else power


@dataclass
class Batcher:
    """Collects lines and runs them in batches, in its own threads.

    Attributes:
      run: returns the results for lines with equal keys, in order; called in a thread.
      rows: returns the maximum number of lines per batch for a key.
      wait: maximum time in seconds that a line waits for others while a batch is in progress.
      most_waiting: maximum number of waiting lines.
    """

    run: Callable[[Sequence[Item]], Sequence[Any]]
    rows: Callable[[Any], int]
    wait: float
    most_waiting: int
    _waiting: list[Item] = field(default_factory=list)
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)
    _running: int = 0
    _maxima: "deque[tuple[float, int]]" = field(default_factory=deque)
    _return_until: float = 0.0
    _arrivals: int = 0

    def __post_init__(self) -> None:
        self._arrival = asyncio.Event()
        self._pool = ThreadPoolExecutor(IN_FLIGHT, thread_name_prefix="translate")
        self._free = asyncio.Semaphore(IN_FLIGHT)

    @property
    def waiting(self) -> int:
        """Number of lines waiting for a batch."""
        return len(self._waiting)

    def submit(self, key: Any, lines: Sequence[tuple[int, Any]]) -> "list[asyncio.Future[Any]]":
        """Add the lines (width, line) of a request, and return futures for their results. Cancelled lines are not run.

        Raises:
          asyncio.QueueFull: there is no room for all lines; none of them is added.
        """
        self._waiting = [item for item in self._waiting if not item.answer.done()]
        if len(self._waiting) + len(lines) > self.most_waiting:
            raise asyncio.QueueFull
        loop, now = asyncio.get_running_loop(), time.monotonic()
        items = [Item(key, width, line, loop.create_future(), now) for width, line in lines]
        self._waiting += items
        self._arrivals += len(items)
        self._record(now)
        if now < self._return_until:
            self._return_until = now + RETURN_SECONDS
        self._arrival.set()
        return [item.answer for item in items]

    async def work(self) -> None:
        """Run batches until cancelled."""
        try:
            while True:
                await self._arrival.wait()
                await self._free.acquire()
                batch = await self._next()
                if not batch:
                    self._free.release()
                    continue
                task = asyncio.create_task(self._run(batch))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
        finally:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _record(self, now: float) -> None:
        """Record the number of lines waiting or in progress; of the last `RECENT_SECONDS`, only maxima are kept."""
        count = len(self._waiting) + self._running
        while self._maxima and self._maxima[-1][1] <= count:
            self._maxima.pop()
        self._maxima.append((now, count))
        while self._maxima[0][0] < now - RECENT_SECONDS:
            self._maxima.popleft()

    async def _next(self) -> list[Item]:
        """The next batch, once enough lines have arrived or the oldest has waited long enough. [] if all are cancelled.

        Half of the recent maximum of concurrent lines is enough: clients that immediately send another line then keep
        two batches of equal size in progress. Otherwise the first few to return would form a small batch, which takes a
        large part of the time of a full one. If no batch is in progress, a smaller recent maximum is enough, and the
        oldest line only waits while the clients of the last batch may be sending their next lines.
        """
        while True:
            self._waiting = [item for item in self._waiting if not item.answer.done()]
            if not self._waiting:
                self._arrival.clear()
                return []
            oldest, now, recent = self._waiting[0], time.monotonic(), self._maxima[0][1]
            half = max(SMALLEST_SECOND, (recent + 1) // 2)
            left = oldest.arrived + self.wait - now
            if not self._running:
                left = min(left, self._return_until - now)
            enough = half if self._running else min(half, recent)
            if len(self._waiting) >= min(enough, self.rows(oldest.key)) or (left <= 0 and await self._caught_up()):
                return self._take(half)
            self._arrival.clear()
            try:
                async with asyncio.timeout(max(left, 0)):
                    await self._arrival.wait()
            except TimeoutError:
                self._arrival.set()

    def _take(self, most: int) -> list[Item]:
        """Take a batch of at most so many waiting lines; none if all were cancelled."""
        waiting = [item for item in self._waiting if not item.answer.done()]
        chosen = choose(waiting, min(most, self.rows(waiting[0].key))) if waiting else []
        taken = set(map(id, chosen))
        self._waiting = [item for item in waiting if id(item) not in taken]
        self._running += len(chosen)
        return chosen

    async def _caught_up(self) -> bool:
        """Whether no line arrives while the event loop handles pending events, such as the answers of a batch."""
        before = self._arrivals
        for _ in range(LOOP_TURNS):
            await asyncio.sleep(0)
        return self._arrivals == before

    async def _run(self, batch: list[Item]) -> None:
        """Run a batch. If it fails, run each line alone, so that only those that cannot be translated fail."""
        try:
            try:
                await self._answer(batch)
            except Exception:
                for item in batch:
                    try:
                        await self._answer([item])
                    except Exception as error:
                        if not item.answer.done():
                            item.answer.set_exception(error)
        finally:
            self._running -= len(batch)
            self._return_until = time.monotonic() + RETURN_SECONDS
            self._free.release()
            self._arrival.set()

    async def _answer(self, batch: Sequence[Item]) -> None:
        results = await asyncio.get_running_loop().run_in_executor(self._pool, self.run, batch)
        for item, result in zip(batch, results, strict=True):
            if not item.answer.done():
                item.answer.set_result(result)
