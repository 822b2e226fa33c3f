"""Lines of different requests share batches, and none suffers from another."""

import asyncio
import threading

import pytest

from convs2s_jax.serving import batching
from convs2s_jax.serving.batching import SMALLEST_SECOND, Batcher, Item, choose, filled


@pytest.fixture(autouse=True)
def long_memory(monkeypatch):
    """The most lines at once are remembered even if a test is kept from running for seconds."""
    monkeypatch.setattr(batching, "RECENT_SECONDS", 600.0)


async def turns_of_the_loop():
    """Whatever can begin without waiting has begun."""
    for _ in range(10 * batching.LOOP_TURNS):
        await asyncio.sleep(0)


def item(key, width, line=""):
    return Item(key, width, line, None, 0.0)


def test_a_batch_is_the_oldest_line_and_the_nearest_in_width_of_its_key():
    waiting = [item("a", 32), item("b", 16), item("a", 65), item("a", 16), item("a", 40), item("a", 64)]
    assert choose(waiting, 3) == [waiting[0], waiting[4], waiting[3]]
    assert choose(waiting[1:], 3) == [waiting[1]]
    assert choose(waiting, 9) == [waiting[0], waiting[4], waiting[3], waiting[5]]  # 65 is its turn's oldest
    assert choose(waiting[2:], 9) == [waiting[2], waiting[5], waiting[4], waiting[3]]


def test_a_batch_has_few_empty_rows_and_leaves_none_behind_for_long():
    """Rows are computed by powers of two: at least seven eighths of them hold lines, from nine lines on."""
    for lines in range(1, 200):
        taken = filled(lines)
        assert 1 <= taken <= lines < 2 * taken
        if lines > SMALLEST_SECOND:
            assert taken * 8 >= 7 * (1 << (taken - 1).bit_length())
    assert [filled(lines) for lines in (5, 8, 13, 14, 40, 55, 56, 64)] == [5, 8, 8, 14, 32, 32, 56, 64]
    assert len(choose([item("a", 16)] * 40, 64)) == 32


def batches(work, *, run, rows=4, wait=0.05, most=100):
    """What `work(batcher)` returns, and the batches that ran."""
    ran = []

    def recorded(items):
        ran.append([one.line for one in items])
        return run(items)

    async def main():
        batcher = Batcher(recorded, lambda _key: rows, wait, most)
        working = asyncio.create_task(batcher.work())
        try:
            return await work(batcher)
        finally:
            working.cancel()

    return asyncio.run(main()), ran


def upper(items):
    return [one.line.upper() for one in items]


def test_lines_that_arrive_together_share_batches_and_keep_their_answers():
    begun, go = threading.Event(), threading.Event()

    async def work(batcher):
        alone = batcher.submit("k", [(16, "x")])
        assert await asyncio.to_thread(begun.wait, 60)  # nothing was in progress: it has not waited
        first = batcher.submit("k", [(16, "a"), (16, "b")])
        await turns_of_the_loop()
        second = batcher.submit("k", [(16, "c"), (16, "d"), (16, "e")])
        go.set()
        return await asyncio.gather(*alone, *first, *second)

    def run(items):
        if items[0].line == "x":
            begun.set()
            go.wait(60)
        return upper(items)

    answers, ran = batches(work, run=run, wait=30.0)
    assert answers == ["X", "A", "B", "C", "D", "E"]
    assert ran == [["x"], ["a", "b", "c", "d"], ["e"]]


def test_a_second_batch_begins_with_half_of_the_lines_that_were_there_at_once():
    """Not with the first few that come, not only when the other ends, and not smaller because the other is small."""
    begun, held = threading.Event(), threading.Event()

    def run(items):
        if items[0].line == "first":
            begun.set()
            held.wait(30)
        return upper(items)

    async def work(batcher):
        await asyncio.gather(*batcher.submit("k", [(16, "before")] * 32))
        first = batcher.submit("k", [(16, "first")] * 2)
        assert await asyncio.to_thread(begun.wait, 60)
        few = batcher.submit("k", [(16, "a")] * 15)
        await turns_of_the_loop()
        assert batcher.waiting == 15
        last = batcher.submit("k", [(40, "b")])  # of another width, which still counts
        await asyncio.gather(*few)  # while the first is in progress
        assert not first[0].done()
        held.set()
        await asyncio.gather(*first, *last)

    _, ran = batches(work, run=run, rows=64, wait=600.0)
    assert sorted(map(len, ran[:2])) == [16, 16]
    assert [len(batch) for batch in ran[2:]] == [2, 15, 1]


def test_the_next_batch_waits_for_clients_that_return_one_by_one(monkeypatch):
    """With no batch in progress, the first that returns would otherwise be translated alone, beside all others."""
    monkeypatch.setattr(batching, "RETURN_SECONDS", 20.0)

    async def client(batcher, i):
        for _ in range(3):
            await asyncio.gather(*batcher.submit("k", [(16, "a")]))
            await asyncio.sleep(0.002 * i)

    async def work(batcher):
        await asyncio.gather(*(client(batcher, i) for i in range(8)))

    _, ran = batches(work, run=upper, rows=64, wait=30.0)
    assert [len(batch) for batch in ran] == [8, 8, 8]


def test_a_line_that_fails_harms_no_other():
    def run(items):
        if any(one.line == "bad" for one in items):
            raise RuntimeError("bad line")
        return upper(items)

    async def work(batcher):
        return await asyncio.gather(*batcher.submit("k", [(16, "a"), (16, "bad"), (16, "b")]), return_exceptions=True)

    (one, error, other), _ = batches(work, run=run)
    assert (one, other) == ("A", "B")
    assert str(error) == "bad line"


@pytest.mark.parametrize("turns", [0, 2])
def test_work_that_is_cancelled_while_a_line_arrives_ends(turns):
    """So that a server ends, which waits for it."""
    begun, blocked = threading.Event(), threading.Event()

    def run(items):
        begun.set()
        blocked.wait(60)
        return upper(items)

    async def main():
        batcher = Batcher(run, lambda _key: 4, 60.0, 100)
        working = asyncio.create_task(batcher.work())
        batcher.submit("k", [(16, "a")])
        assert await asyncio.to_thread(begun.wait, 60)  # it runs, and work waits for lines of the next batch
        batcher.submit("k", [(16, "b")])
        await turns_of_the_loop()
        batcher.submit("k", [(16, "c")])
        for _ in range(turns):
            await asyncio.sleep(0)
        working.cancel()
        ended, _ = await asyncio.wait([working], timeout=10)
        blocked.set()
        return ended

    assert asyncio.run(main())


def test_a_request_beyond_the_room_is_refused_as_a_whole():
    begun, blocked = threading.Semaphore(0), threading.Event()

    def run(items):
        begun.release()
        blocked.wait(60)
        return upper(items)

    async def work(batcher):
        running = [batcher.submit("k", [(16, line)])[0] for line in "ab"]
        for _ in running:
            assert await asyncio.to_thread(begun.acquire, timeout=60)  # both threads are busy
        waiting = batcher.submit("k", [(16, "c"), (16, "d")])
        with pytest.raises(asyncio.QueueFull):
            batcher.submit("k", [(16, "e"), (16, "f")])
        assert batcher.waiting == 2
        waiting += batcher.submit("k", [(16, "g")])
        blocked.set()
        return await asyncio.gather(*running, *waiting)

    answers, ran = batches(work, run=run, rows=1, wait=0.0, most=3)
    assert answers == ["A", "B", "C", "D", "G"]
    assert sorted(line for batch in ran for line in batch) == ["a", "b", "c", "d", "g"]  # by two threads, in any order
