"""A server as a process: its address, how it ends, and that its translations are those of decode.py."""

import asyncio
import contextlib
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

import pytest
import uvicorn

from convs2s_jax.core.errors import UserError
from convs2s_jax.core.guard import handlers
from convs2s_jax.serving import app
from convs2s_jax.serving.options import ServeOptions
from convs2s_jax.serving.server import _Server, address_of, listening_socket
from convs2s_jax.serving.service import Service
from tests.serving.reversing import reversing
from tests.serving.test_app import FOREIGN, OWN
from tests.workdirs import unpacked

COMMAND = [sys.executable, "-c", "from convs2s_jax.commands.convs2s import console; console()", "serve"]


def test_an_address_in_use_or_of_another_machine_is_refused():
    with listening_socket("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
        assert address_of(listener) == f"http://127.0.0.1:{port}"
        with pytest.raises(UserError, match=f"--port={port} is already in use by another program"):
            listening_socket("127.0.0.1", port)
    with pytest.raises(UserError, match=r"--host=192.0.2.1 --port=0 cannot be used: .*; choose another address"):
        listening_socket("192.0.2.1", 0)
    with pytest.raises(UserError, match="--host=no such host: "):
        listening_socket("no such host", 0)
    for odd in ("my..host", "a" * 70 + ".b"):
        with pytest.raises(UserError, match=f"--host={odd}: not a valid host name; use an address of this machine"):
            listening_socket(odd, 0)


async def closing_for_a_second(scope, _receive, send):
    """An application whose thread delays the end of its event loop, as a program that is being compiled does."""
    assert scope["type"] == "lifespan"
    await send({"type": "lifespan.startup.complete"})
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 1)
    await send({"type": "lifespan.shutdown.complete"})


def signalled_twice(number):
    """Run a server that receives a signal once it has started, and again while its event loop closes."""
    server = _Server(uvicorn.Config(closing_for_a_second, log_level="error"))

    def send():
        while not server.started:
            time.sleep(0.01)
        for _ in range(2):
            os.kill(os.getpid(), number)
            time.sleep(0.5)

    sending = threading.Thread(target=send)
    with listening_socket("127.0.0.1", 0) as listener:
        sending.start()
        with handlers(dict.fromkeys((signal.SIGTERM, signal.SIGINT), server.stop)):
            server.run(sockets=[listener])
    sending.join()


def test_a_second_sigterm_lets_the_server_finish_and_a_second_ctrl_c_ends_it(monkeypatch):
    outside, raised = [], []
    monkeypatch.setattr(signal, "raise_signal", lambda number: raised.append((number, signal.getsignal(number))))
    before = {number: signal.signal(number, lambda *_: outside.append(1)) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        signalled_twice(signal.SIGTERM)
        assert raised == []
        signalled_twice(signal.SIGINT)
        assert raised == [(signal.SIGINT, signal.SIG_DFL)]
        assert outside == []
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def reversing_server():
    """The address of a server, in a thread, whose model turns words around."""
    made = Service(
        reversing(),
        ServeOptions(workdir=("w",), allow_host=("t.e", "mine.example")),
        tell=lambda _: None,
        failed=pytest.fail,
    )
    server = _Server(uvicorn.Config(app.make(made), http="h11", ws="none", log_level="critical"))
    with listening_socket("127.0.0.1", 0) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join()


def statuses(place, request):
    """The statuses of all answers to some bytes, until the server closes the connection."""
    with socket.create_connection(place, timeout=20) as connection:
        connection.sendall(request)
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    return [int(status) for status in re.findall(rb"^HTTP/1\.1 (\d+) ", answer, re.MULTILINE)]


HIDDEN = "0\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
"""A body that is another request, if its length is understood in another way."""
BOTH = f"Content-Length: {len(HIDDEN)}\r\nTransfer-Encoding: chunked\r\n\r\n{HIDDEN}"
RAW = [
    ("GET /health HTTP/1.1\r\nHost: localhost", [200]),
    ("GET /health HTTP/1.1\r\nhOsT:LOCALHOST.:1", [200]),
    ("GET /health HTTP/1.1\r\nHost: [::1]:8000", [200]),
    ("GET /health HTTP/1.1\nHost: localhost", [200]),
    ("GET /health HTTP/1.0", [200]),
    ("GET /health HTTP/1.1", [400]),
    ("GET /health HTTP/1.1\r\nHost:", [421]),
    ("GET /health HTTP/1.1\r\nHost: evil.example", [421]),
    ("GET /health HTTP/1.0\r\nHost: evil.example", [421]),
    ("GET /health HTTP/1.1\r\nHost: localhost\r\n .evil.example", [421]),
    ("GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example", [400]),
    ("GET /health HTTP/1.1\r\nHost: evil.example\r\nHost: localhost", [400]),
    ("GET /health HTTP/1.1\r\nHost : localhost", [400]),
    ("GET /health HTTP/1.1\r\nHost: local\0host", [400]),
    ("GET /health HTTP/1.1\r\nHost: localhost\rX: y", [400]),
    ("GET http://evil.example/health HTTP/1.1\r\nHost: evil.example", [421]),
    ("GET http://evil.example/health HTTP/1.1\r\nHost: localhost", [404]),
    ("CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost", [404]),
    ("GET /health HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: identity", [400]),
    (f"POST /translate HTTP/1.1\r\nHost: localhost\r\n{BOTH}", [400]),
    (f"POST /health HTTP/1.1\r\nHost: localhost\r\n{BOTH}", [400]),
    ("GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2", [400]),
    ("GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: +1", [400]),
]


@pytest.mark.drill
def test_hostile_hosts_and_framing_get_one_refusal(tally):
    """The table, and random combinations: only an own host and a length that is stated once give an answer."""
    with reversing_server() as place:
        for request, expected in RAW:
            end = "" if "Transfer-Encoding: chunked" in request else "\r\nConnection: close\r\n\r\n"
            assert statuses(place, f"{request}{end}".encode()) == expected, request[:200]
        rng, tries, losses = random.Random(65), 2000, 0
        for _ in range(tries):
            hosts = rng.choices((*OWN, *FOREIGN), k=rng.choice((0, 1, 1, 1, 2)))
            lengths = rng.sample(("Content-Length: 5", "Transfer-Encoding: chunked"), rng.randrange(3))
            lines = [f"Host: {host}" for host in hosts] + lengths + ["Connection: close", f"X: {rng.choice(FOREIGN)}"]
            rng.shuffle(lines)
            head = [f"GET {rng.choice(('', 'http://evil.example'))}/health HTTP/1.{rng.randrange(2)}", *lines]
            request = rng.choice(("\r\n", "\n")).join([*head, "", "0\r\n\r\n" if lengths else ""])
            found = statuses(place, request.encode("latin-1"))
            served = len(lengths) < 2 and len(hosts) < 2 and not {*hosts} & {*FOREIGN} and " http" not in head[0]
            served = served and (hosts or head[0].endswith("0"))
            losses += len(found) != 1 or (found == [200]) != bool(served) or found[0] >= 500
        assert statuses(place, b"GET /health HTTP/1.0\r\n\r\n") == [200]
    tally(tries=len(RAW) + tries, losses=losses)


class Running:
    """A server in a process of its own."""

    def __init__(self, workdir, *flags):
        command = [*COMMAND, f"--workdir={workdir}", "--port=0", *flags]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.said = []
        self._reader = threading.Thread(target=lambda: self.said.extend(self.process.stderr))
        self._reader.start()
        self.address = self._wait(lambda: next(iter(re.findall(r"http://[\d.:]+", "".join(self.said))), None))
        self._wait(lambda: any("ready" in line for line in self.said))

    def _wait(self, found, seconds=300):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if value := found():
                return value
            assert self.process.poll() is None, "".join(self.said)
            time.sleep(0.05)
        raise AssertionError("".join(self.said))

    def end(self):
        self.process.kill()
        self.process.wait()
        self._reader.join()
        self.process.stderr.close()

    def ask(self, **body):
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.address}/translate", data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)


@pytest.fixture
def server(tmp_path):
    running = Running(
        unpacked("convs2s", tmp_path), "--max_tokens=32", "--batch_size=8", "--drain=20", "--max_waiting=9999"
    )
    yield running
    running.end()


@pytest.mark.drill
def test_on_sigterm_requests_in_progress_are_answered_and_the_status_is_0(server):
    expected = server.ask(lines=["5 kilowatts"])
    answers = []

    def keep_asking():
        while True:
            try:
                answers.append(server.ask(lines=["5 kilowatts"] * 8))
            except urllib.error.URLError as error:
                answers.append(error.reason)
                return
            except ConnectionResetError as error:  # the system had accepted the connection, the server not yet
                answers.append(error)
                return

    asking = [threading.Thread(target=keep_asking) for _ in range(8)]
    for thread in asking:
        thread.start()
    time.sleep(1)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == 0
    for thread in asking:
        thread.join()
    good = [answer for answer in answers if isinstance(answer, dict)]
    refused = [answer for answer in answers if not isinstance(answer, dict)]
    assert len(good) > 8
    assert all(answer["translations"] == expected["translations"] * 8 for answer in good)
    assert all(isinstance(error, ConnectionRefusedError | ConnectionResetError) for error in refused), refused
    assert server.said[-1] == "stopped\n"
