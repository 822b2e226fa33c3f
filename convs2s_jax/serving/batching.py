"""Dynamic batching: lines of different requests that arrive within milliseconds are translated together."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from convs2s_jax.serving.waiting import FEWEST, Item, choose

IN_FLIGHT = 2
"""Batches in progress at once, as in `search.spread`. One is computed while the host works on the other."""
SPAN = 2.0
"""Seconds over which the maximum number of concurrent lines is tracked."""
RETURN = 0.02
"""Seconds to wait for clients to send their next line, after the end of a batch and after each line that follows."""
TURNS = 4
"""Event loop iterations from bytes on a socket to a waiting line."""


class FullError(Exception):
    """The queue has no room for more lines."""


@dataclass
class Batcher:
    """Collects lines and runs them in batches, in its own threads.

    Attributes:
      run: returns the results for lines with equal keys, in order; called in a thread.
      rows: returns the maximum number of lines per batch for a key.
      wait: maximum time in seconds that a line waits for others while a batch is in progress.
      most: maximum number of waiting lines.
      ran: called with the number of lines in each batch.
    """

    run: Callable[[Sequence[Item]], Sequence[Any]]
    rows: Callable[[Any], int]
    wait: float
    most: int
    ran: Callable[[int], None] = lambda _lines: None
    _waiting: list[Item] = field(default_factory=list)
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)
    _running: int = 0
    _counts: "deque[tuple[float, int]]" = field(default_factory=deque)
    _returning: float = 0.0
    _came: int = 0

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
          FullError: there is no room for all lines; none of them is added.
        """
        self._waiting = [item for item in self._waiting if not item.answer.done()]
        if len(self._waiting) + len(lines) > self.most:
            raise FullError
        loop, now = asyncio.get_running_loop(), time.monotonic()
        items = [Item(key, width, line, loop.create_future(), now) for width, line in lines]
        self._waiting += items
        self._came += len(items)
        self._count(now)
        if now < self._returning:
            self._returning = now + RETURN
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

    def _count(self, now: float) -> None:
        """Record the number of lines waiting or in progress, keeping only maxima over the last `SPAN` seconds."""
        count = len(self._waiting) + self._running
        while self._counts and (self._counts[-1][1] <= count):
            self._counts.pop()
        self._counts.append((now, count))
        while self._counts[0][0] < now - SPAN:
            self._counts.popleft()

    async def _next(self) -> list[Item]:
        """The next batch, once enough lines have arrived or the oldest has waited long enough."""
        while True:
            self._waiting = [item for item in self._waiting if not item.answer.done()]
            if not self._waiting:
                self._arrival.clear()
                return []
            oldest = self._waiting[0]
            rest = self._patience(oldest, time.monotonic())
            enough = len(self._waiting) >= min(self._target_size(), self.rows(oldest.key))
            if enough or (rest <= 0 and await self._caught_up()):
                return self._take()
            self._arrival.clear()
            try:
                async with asyncio.timeout(max(rest, 0)):
                    await self._arrival.wait()
            except TimeoutError:
                self._arrival.set()

    def _take(self) -> list[Item]:
        """Take a batch of waiting lines, at most half of the recent maximum; none if all were cancelled."""
        waiting = [item for item in self._waiting if not item.answer.done()]
        chosen = choose(waiting, min(self._half, self.rows(waiting[0].key))) if waiting else []
        taken = set(map(id, chosen))
        self._waiting = [item for item in waiting if id(item) not in taken]
        self._running += len(chosen)
        return chosen

    async def _caught_up(self) -> bool:
        """Whether no line arrives while the event loop handles pending events, such as the answers of a batch."""
        before = self._came
        for _ in range(TURNS):
            await asyncio.sleep(0)
        return self._came == before

    def _target_size(self) -> int:
        """Number of lines that make up a batch without waiting: half of the recent maximum, or all if those were few.

        Clients that immediately send another line then keep two batches of equal size in progress. Without this rule
        the first few to return would form a small batch, which takes a large part of the time of a full one.
        """
        return self._half if self._running else min(self._half, self._counts[0][1])

    @property
    def _half(self) -> int:
        """Half of the recent maximum of concurrent lines: the size of a batch if two are in progress."""
        return max(FEWEST, (self._counts[0][1] + 1) // 2)

    def _patience(self, oldest: Item, now: float) -> float:
        """Seconds that the oldest line should keep waiting, 0 or less for none.

        If no batch is in progress, it only waits while the clients of the last one may be sending their next lines.
        """
        rest = oldest.arrived + self.wait - now
        return rest if self._running else min(rest, self._returning - now)

    async def _run(self, batch: list[Item]) -> None:
        """Run a batch. If it fails, run each line alone, so that only those that cannot be translated fail."""
        try:
            try:
                results = await self._in_thread(batch)
            except Exception as error:
                if len(batch) == 1:
                    return self._fail(batch[0], error)
                for item in batch:
                    try:
                        self._answer(item, (await self._in_thread([item]))[0])
                    except Exception as other:
                        self._fail(item, other)
                return None
            for item, result in zip(batch, results, strict=True):
                self._answer(item, result)
        finally:
            self._running -= len(batch)
            self._returning = time.monotonic() + RETURN
            self._free.release()
            self._arrival.set()

    async def _in_thread(self, batch: Sequence[Item]) -> Sequence[Any]:
        results = await asyncio.get_running_loop().run_in_executor(self._pool, self.run, batch)
        self.ran(len(batch))
        return results

    @staticmethod
    def _answer(item: Item, result: Any) -> None:
        if not item.answer.done():
            item.answer.set_result(result)

    @staticmethod
    def _fail(item: Item, error: Exception) -> None:
        if not item.answer.done():
            item.answer.set_exception(error)
