"""What a server answers: translations, and one sentence for everything else."""

import asyncio
import json
import re
import signal
import threading

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.serving import app, server, service
from convs2s_jax.serving.options import ServeOptions
from tests.serving.reversing import Reversing, reversing, talk


def metrics(text):
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))


def answer_to(body, **more):
    async def work(client):
        return await client.post("/translate", json=body)

    return talk(work, **more)


def test_lines_come_back_in_order_with_what_was_asked_for():
    answer = answer_to({"lines": ["one two three", "four"]}).json()
    assert [one["text"] for one in answer["translations"]] == ["three two one", "four"]
    first = answer["translations"][0]
    assert first["source_tokens"] == ["one", "two", "three"]
    names, tokens = (
        ("text", "tokens", "score", "token_scores", "alignment", "attention"),
        ["three", "two", "one", "</s>"],
    )
    values = ("three two one", tokens, -0.5, [-0.25] * 4, None, None)
    assert first["hypotheses"] == [dict(zip(names, values, strict=True))]
    answer = answer_to({"lines": ["one two"], "nbest": 2, "alignment": True, "attention": True}).json()
    best, worse = answer["translations"][0]["hypotheses"]
    assert best["alignment"] == "0-1"
    assert best["attention"] == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]
    assert worse["score"] is None  # JSON has no infinity


REFUSED = [
    ({"beamsize": 2}, 422, "unknown field 'beamsize'; did you mean 'beam_size'?"),
    ({"\0" + "x" * 1000: 2}, 422, "unknown field '\\x00xxx"),
    ({"beam_size": 3}, 422, "beam_size is 3; this server supports 2, 1"),
    ({"nbest": 3}, 422, "nbest is 3; use 1 to 2"),
    ({"temperature": 0}, 422, "temperature is 0"),
    ({"coverage_penalty": 0.5}, 422, "coverage_penalty is not enabled on this server"),
    ({"shortlist": True}, 422, "this server has none"),
    ({"prefix": ["b"]}, 422, "prefix is not enabled on this server; it must be started with --allow=prefixes"),
    ({"constraints": [["b\nc"]]}, 422, "'b\\nc' contains a line break"),
    ({"sampling": True}, 422, "sampling is not enabled on this server; it must be started with --allow=sampling"),
    ({"seed": 3}, 422, "seed has no effect without sampling"),
    ({"sampling": True, "seed": -1}, 422, "seed: input should be greater than or equal to 0"),
    ({"lines": "a"}, 422, "lines: input should be a valid array"),
    ({"lines": ["a", "b\r"]}, 422, "'b\\r' contains a line break"),
    ({"lines": ["a " * 40]}, 422, "line 1 is too long"),
    ({"lines": ["a"] * 300}, 422, "lines has 300 lines, but this server accepts at most 256"),
    ({"lines": ["fail"]}, 500, "the server failed to process this request"),
    (b"{}", 422, "lines: field required"),
    (b"{bad", 400, "the request is not valid JSON"),
    (b'{"lines": ["\xff"]}', 400, "not valid JSON in UTF-8"),
    (b"[" * 4000, 400, "the request is not valid JSON"),
    (b'{"lines": ["a"], "min_length": %s}' % (b"9" * 5000), 400, "number out of range"),
    (b'{"lines": ["a"], "\\ud800": 1}', 400, "the request is not valid JSON"),
    (b'{"lines": ["\\ud800"]}', 400, "the request is not valid JSON"),
    (b'["a"]', 422, 'not a JSON object such as {"lines": ["April 4, 1989"]}'),
    (b'{"lines": ["a"], "length_penalty": NaN}', 422, "length_penalty is nan"),
    (b" " * 7000, 413, "more than 6000 bytes"),
]
JSON = {"content-type": "application/json"}


def test_a_request_that_cannot_be_served_gets_a_sentence():
    async def work(client):
        bodies = [
            body if isinstance(body, bytes) else json.dumps({"lines": ["a"]} | body).encode() for body, *_ in REFUSED
        ]
        return [await client.post("/translate", content=body, headers=JSON) for body in bodies]

    answers = talk(work, options=ServeOptions(workdir=("w",), max_body=6000))
    for (body, status, sentence), answer in zip(REFUSED, answers, strict=True):
        assert (answer.status_code, sentence in answer.json()["error"]) == (status, True), (body, answer.text)
        assert len(answer.text) < 700
        assert not {"Traceback", "/some", "secret"} & set(answer.text.split())


def test_a_body_that_is_not_declared_as_json_is_refused():
    """A page of another host can send other types, or none, without asking the server first."""
    kinds = ("Application/JSON ; charset=utf-8", "text/plain", "application/x-www-form-urlencoded", "", None)

    async def work(client):
        body = {"content": b'{"lines": ["a b"]}'}
        return [
            await client.post("/translate", **body, headers={} if kind is None else {"content-type": kind})
            for kind in kinds
        ]

    answers = talk(work)
    assert [answer.status_code for answer in answers] == [200, 415, 415, 415, 415]
    sentence = "the request is not declared as JSON; send it with Content-Type: application/json"
    assert all(answer.json() == {"error": sentence} for answer in answers[1:])


OWN = (
    "localhost",
    "LOCALHOST.:8080",
    "127.0.0.1:1",
    "[::1]:8000",
    "[fe80::1%25eth0]",
    "10.1.2.3",
    "Mine.Example",
    "t.e",
)
FOREIGN = (
    *(
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "127.0.0.1@evil.example",
    ),
    *(
        "evil.example@localhost",
        "localhost:80:80",
        "localhost:x",
        "localhost..",
        "127.1",
        "[::1",
        "::1",
        "[evil.example]",
    ),
    *("localhost evil", "localhost/", "localhost,evil.example", "", "*", "l\u00f6calhost"),
)


def test_only_hosts_that_are_this_server_get_an_answer():
    async def work(client):
        paths = [("GET", path) for path in ("/", "/health", "/metrics", "/page.js", "/docs", "/no")]
        requests = [*paths, ("HEAD", "/ready"), ("POST", "/translate")]
        return [
            (host, [await client.request(*one, headers={"host": host.encode("latin-1")}) for one in requests])
            for host in (*OWN, *FOREIGN)
        ]

    options = ServeOptions(workdir=("w",), host="t.e", allow_host=("mine.example",))
    for host, answers in talk(work, options=options):
        assert [answer.status_code == 421 for answer in answers] == [host in FOREIGN] * 8, host
    assert answers[0].json()["error"].startswith("this server does not answer for the host 'l")
    anyone = talk(work, options=ServeOptions(workdir=("w",), allow_host=("*",)))
    answered = {host for host, answers in anyone if [one.status_code for one in answers[:2]] == [200, 200]}
    assert answered == {*OWN, *(host for host in FOREIGN if re.fullmatch(r"[a-z0-9.]+(:8080)?", host))}
    assert {answer.status_code for _, answers in anyone for answer in answers} == {200, 404, 415, 421}
    with pytest.raises(UserError, match=r"^--allow_host=http://a is not a host name; leave out scheme and port"):
        ServeOptions(workdir=("w",), allow_host=("a", "http://a"))


def test_before_all_programs_are_compiled_the_server_says_so():
    class Slow(Reversing):
        def compile(self):
            yield
            self.event.wait(20)

    engine = reversing(Slow)

    async def work(client):
        try:
            return [await client.get("/ready"), await client.post("/translate", json={"lines": ["a"]})]
        finally:
            engine.event.set()

    for answer in talk(work, engine=engine, compile=False):
        assert answer.status_code == 503
        assert f"of {len(list(engine.shapes()))} programs are compiled; try again soon" in answer.json()["error"]
        assert answer.headers["retry-after"] == "1"


def test_a_server_that_ends_while_it_compiles_waits_for_one_program_only():
    class Counting(Reversing):
        def compile(self):
            for i in range(500):
                self.compiled.append(i)
                self.event.wait(0.01)
                yield

    engine = reversing(Counting)
    object.__setattr__(engine, "compiled", [])
    made = service.Service(engine, ServeOptions(workdir=("w",)), tell=pytest.fail, failed=pytest.fail)

    async def main():
        async with made.running():
            while not engine.compiled:
                await asyncio.sleep(0.001)
        return len(engine.compiled)

    at_the_end = asyncio.run(main())  # it joins the threads of the event loop
    assert len(engine.compiled) <= at_the_end + 1
    assert 0 < made.compiled <= len(engine.compiled)


def test_a_server_whose_programs_cannot_be_compiled_ends_with_the_error(monkeypatch):
    class Large(Reversing):
        def compile(self):
            yield
            raise MemoryError

    engine = reversing(Large)
    monkeypatch.setattr(server.engine, "load", lambda *_, **__: engine)
    told = []
    unnoticed = threading.Timer(60, signal.raise_signal, (signal.SIGTERM,))
    unnoticed.start()
    try:
        with pytest.raises(MemoryError):
            server.serve(ServeOptions(workdir=("w",), port=0), tell=told.append)
    finally:
        unnoticed.cancel()
    assert not any(line.startswith(("ready", "stopped")) for line in told)


def test_a_line_that_takes_too_long_gets_504_and_the_others_their_answers():
    engine = reversing()

    async def work(client):
        slow = asyncio.create_task(client.post("/translate", json={"lines": ["slow"]}))
        assert await asyncio.to_thread(engine.begun.acquire, timeout=15)
        for _ in range(10):  # it may be this process that is late
            other = await client.post("/translate", json={"lines": ["a b"]})
            if other.status_code != 504:
                break
        late = await slow
        engine.event.set()
        return other, late

    other, late = talk(work, engine=engine, options=ServeOptions(workdir=("w",), timeout=0.5, wait_ms=10))
    assert other.json()["translations"][0]["text"] == "b a"
    assert late.status_code == 504
    assert late.json()["error"] == "the request timed out after 0.5 seconds"


def test_attention_beyond_what_an_answer_may_hold_is_refused(monkeypatch):
    of_a_line = 16 * (2 * 16 + 10 + 1)  # a width of 16, and the longest translation
    monkeypatch.setattr(service, "MOST_WEIGHTS", 3 * of_a_line)
    body = {"lines": ["a"] * 4, "attention": True}
    assert answer_to(body | {"lines": ["a"] * 3}).status_code == 200
    assert answer_to(body | {"attention": False, "alignment": True}).status_code == 200
    for asked, lines in ((body, 4), (body | {"lines": ["a"] * 2, "nbest": 2}, 4)):
        answer = answer_to(asked)
        assert answer.status_code == 422
        assert f"may have {lines * of_a_line} weights, but this server returns at most" in answer.json()["error"]


def test_a_full_queue_answers_429():
    engine = reversing(batch_size=1)
    options = ServeOptions(workdir=("w",), max_waiting=2, max_lines=2, batch_size=1)

    async def work(client):
        asked = [asyncio.create_task(client.post("/translate", json={"lines": ["slow"]})) for _ in range(2)]
        for _ in range(2):
            assert await asyncio.to_thread(engine.begun.acquire, timeout=15)  # both threads are busy
        asked.append(asyncio.create_task(client.post("/translate", json={"lines": ["a", "b"]})))
        while "convs2s_waiting_lines 2.0" not in (await client.get("/metrics")).text:
            assert not asked[-1].done()
            await asyncio.sleep(0.01)
        refused = await client.post("/translate", json={"lines": ["c"]})
        engine.event.set()
        return refused, [answer.status_code for answer in await asyncio.gather(*asked)]

    refused, others = talk(work, engine=engine, options=options)
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    assert others == [200, 200, 200]


def test_the_page_loads_nothing_from_elsewhere_and_the_interface_is_described():
    async def work(client):
        pages = [await client.get(path) for path in ("/", "/page.js", "/page.css")]
        return pages, (await client.get("/openapi.json")).json()

    pages, described = talk(work)
    assert [page.status_code for page in pages] == [200, 200, 200]
    assert all("http" not in page.text and page.headers["content-security-policy"] == app.POLICY for page in pages)
    assert "TranslationRequest" in json.dumps(described["paths"]["/translate"])


def test_another_address_or_method_gets_a_sentence():
    expected = {
        ("GET", "/translate"): (405, "send lines to /translate with POST"),
        ("POST", "/health"): (405, "this address accepts GET only"),
        ("POST", "/translate/"): (404, "no such page; see /docs for all endpoints"),
        ("GET", "/../app.py"): (404, "no such page; see /docs for all endpoints"),
    }

    async def work(client):
        return [await client.request(method, path) for method, path in expected]

    answers = talk(work)
    assert [(answer.status_code, answer.json()["error"]) for answer in answers] == [*expected.values()]
    assert all(("allow" in answer.headers) == (answer.status_code == 405) for answer in answers)


def test_a_body_that_is_too_large_is_read_to_its_end():
    """A client that is still sending when the connection is closed would lose the answer."""
    sent = []

    async def body():
        for i in range(100):
            sent.append(i)
            yield b" " * 100

    async def work(client):
        return await client.post("/translate", content=body())

    assert talk(work, options=ServeOptions(workdir=("w",), max_body=4096)).status_code == 413
    assert len(sent) == 100


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


def test_metrics_count_requests_lines_and_batches():
    async def work(client):
        for content in (b"{bad", b"[" * 4000, b'{"lines": 1}', b" " * 5000):
            await client.post("/translate", content=content, headers=JSON)
        await client.post("/translate", json={"lines": ["a", "b", "c"]})
        return (await client.get("/metrics")).text

    found = metrics(talk(work, options=ServeOptions(workdir=("w",), max_body=4096)))
    counts = {status: found[f'convs2s_requests_total{{status="{status}"}}'] for status in (200, 400, 413, 422)}
    assert counts == {200: "1.0", 400: "2.0", 413: "1.0", 422: "1.0"}
    assert found["convs2s_lines_total"] == found["convs2s_batch_lines_sum"] == "3.0"
    assert (found["convs2s_ready"], found["convs2s_request_seconds_count"]) == ("1.0", "1.0")  # without refusals
