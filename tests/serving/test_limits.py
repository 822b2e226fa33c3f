"""Requests that are too large, do not arrive, or outlast the server are refused, and refusals are counted."""

import asyncio

import pytest

from convs2s_jax.serving.app import Limited
from convs2s_jax.serving.options import ServeOptions
from tests.serving.reversing import reversing, talk


@pytest.mark.parametrize(
    ("parts", "length", "read"),
    [(100, None, 100), (100, 10_000, 100), (10_000, None, 656), (10_000, 1_000_000, 0)],
    ids=["without a length", "with one", "very long", "very long, with its length"],
)
def test_a_body_that_is_too_large_is_read_to_its_end_within_reason(parts, length, read):
    """A client that is still sending when the connection is closed would lose the answer."""
    sent = []

    async def body():
        for i in range(parts):
            sent.append(i)
            yield b" " * 100

    async def work(client):
        headers = {} if length is None else {"content-length": str(length)}
        return await client.post("/translate", content=body(), headers=headers)

    assert talk(work, options=ServeOptions(workdir=("w",), max_body=4096)).status_code == 413
    assert abs(len(sent) - read) <= 5


def test_a_body_that_does_not_arrive_is_given_up():
    async def stuck():
        yield b"{"
        await asyncio.sleep(20)

    async def work(client):
        answer = await client.post("/translate", content=stuck())
        return answer.status_code, (await client.get("/metrics")).text

    status, metrics = talk(work, options=ServeOptions(workdir=("w",), timeout=0.2))
    assert status == 408
    assert 'convs2s_requests_total{status="408"} 1.0' in metrics


@pytest.mark.parametrize("arrived", [True, False])
def test_a_request_that_the_ending_server_does_not_wait_for_gets_503(arrived):
    """Uvicorn cancels its task, whether the body is read or not."""
    engine, reading = reversing(), asyncio.Event()

    async def stuck():
        yield b"{"
        reading.set()
        await asyncio.Event().wait()

    async def work(client):
        body = {"json": {"lines": ["slow"]}} if arrived else {"content": stuck()}
        asked = asyncio.create_task(client.post("/translate", **body))
        await (asyncio.to_thread(engine.begun.acquire, timeout=15) if arrived else reading.wait())
        asked.cancel()
        try:
            return await asked, (await client.get("/metrics")).text
        finally:
            engine.event.set()

    answer, metrics = talk(work, engine=engine)
    assert (answer.status_code, answer.headers["retry-after"], answer.headers["connection"]) == (503, "1", "close")
    assert answer.json() == {
        "error": "the server is shutting down and could not finish this request in time; send it again"
    }
    assert [line for line in metrics.splitlines() if line.startswith("convs2s_requests_total")] == [
        'convs2s_requests_total{status="503"} 1.0'
    ]


def test_an_answer_that_has_begun_when_the_server_ends_is_left_as_it_is():
    sent, counted = [], []

    async def slow(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200})
        await asyncio.Event().wait()

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message["type"])

    async def main():
        bounded = Limited(slow, most=9, seconds=60, count=lambda *refusal: counted.append(refusal))
        task = asyncio.create_task(bounded({"type": "http", "path": "/", "headers": []}, receive, send))
        while not sent:
            await asyncio.sleep(0)
        task.cancel()
        await task

    asyncio.run(main())
    assert (sent, counted) == (["http.response.start"], [])


def test_metrics_count_requests_that_are_refused_before_they_are_read():
    async def work(client):
        for content in (b"{bad", b"[" * 4000, b'{"lines": 1}', b" " * 5000):
            await client.post("/translate", content=content, headers={"content-type": "application/json"})
        await client.post("/health", content=b" " * 5000)  # none that asks for a translation
        await client.post("/translate", json={"lines": ["a"]})
        return (await client.get("/metrics")).text.splitlines()

    lines = talk(work, options=ServeOptions(workdir=("w",), max_body=4096))
    found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert [found[f'convs2s_requests_total{{status="{status}"}}'] for status in (400, 413, 422)] == [
        "2.0",
        "1.0",
        "1.0",
    ]
    assert found["convs2s_request_seconds_count"] == "1.0"  # none of the refusals


def test_the_time_of_a_request_begins_with_its_arrival():
    go = asyncio.Event()

    async def slow():
        yield b'{"lines": '
        await go.wait()
        yield b'["a"]}'

    async def work(client):
        headers = {"content-type": "application/json"}
        asked = asyncio.create_task(client.post("/translate", content=slow(), headers=headers))
        await asyncio.sleep(0.3)
        go.set()
        assert (await asked).status_code == 200
        return (await client.get("/metrics")).text.splitlines()

    [line] = [line for line in talk(work) if line.startswith("convs2s_request_seconds_sum ")]
    assert float(line.split()[1]) >= 0.3
