"""Load-test a server:  python benchmarks/serve.py --workdir=RUN --input=FILE [--minutes 10]

Starts `convs2s serve` on the loopback interface and sends it the lines of the file, one per request, with 1, 8 and 64
clients. Each client sends its next request as soon as it has an answer. Prints sentences/s and latencies and, from the
same run, the sentences/s of `translate` on the same lines in one call, as in decode.py, and the seconds of single
calls. All translations are compared. It also prints the milliseconds of processor time per sentence of `translate`, the
server, and the clients, which run on the same cores. These are comparable even on a busy machine.

With --minutes, clients then send good, bad, cancelled and oversized requests at random for this time. Lost or different
answers and the growth of the server's memory are printed.
"""

import argparse
import asyncio
import dataclasses
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
from machine import describe, positive, run_script, spread

from convs2s_jax.data.text_files import read_lines
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.translation.lines import TextRequest, translate
from convs2s_jax.translation.translator import Translator, load, precomputed

CLIENTS = (1, 8, 64)
MOST = 64
"""Maximum number of source tokens of a line."""
SINGLE = 32
"""Number of lines that are translated one by one."""
BAD = (
    {"content": b"{not json"},
    {"content": b"{not json", "headers": {"content-type": "application/json"}},
    {"json": {"lines": ["a"], "beamsize": 3}},
    {"json": {"lines": ["a"], "beam_size": 999}},
    {"json": {"lines": ["two\nlines"]}},
    {"json": {"lines": ["many words " * 500]}},
    {"content": b" " * (2 << 20)},
)
"""Requests that the server rejects."""


def main() -> None:
    """Measure, compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workdir", required=True, help="a trained model")
    parser.add_argument("--input", required=True, help="source lines")
    parser.add_argument("--lines", type=positive, default=512, help="number of lines to translate")
    parser.add_argument(
        "--max_length", type=positive, help="maximum tokens of a translation, for a model after a few updates"
    )
    parser.add_argument("--repeats", type=positive, default=3)
    parser.add_argument("--minutes", type=float, default=0.0, help="length of the mixed load; 0 for none")
    options = parser.parse_args()
    print(describe(), flush=True)
    translator = precomputed(load(Path(options.workdir), tell=print))
    lines = [line for line in read_lines(options.input) if line.strip()][: options.lines]
    random.Random(1).shuffle(lines)
    search, flags = translator.cfg.search, []
    if options.max_length:
        search = dataclasses.replace(search, max_length_a=0.0, max_length_b=options.max_length)
        flags = ["--max_length_a=0", f"--max_length_b={options.max_length}"]
    expected = offline(translator, search, lines, options.repeats)
    command = [sys.executable, "-c", "from convs2s_jax.commands.convs2s import console; console()", "serve"]
    command += [f"--workdir={options.workdir}", "--port=0", f"--max_tokens={MOST}", *flags]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as server:
        try:
            address = wait_for(server)
            asyncio.run(measure(address, server.pid, lines, expected, options.repeats))
            if options.minutes:
                asyncio.run(mixed(address, server.pid, lines, expected, options.minutes * 60))
        finally:
            server.terminate()


def offline(translator: Translator, search: SearchConfig, lines: Sequence[str], repeats: int) -> list[str]:
    """Print the speed of `translate` for all lines at once and for single ones, and return the translations."""

    def seconds(batch: Sequence[str]) -> float:
        before = time.perf_counter()
        translate(translator, TextRequest(search, batch, attention=False))
        return time.perf_counter() - before

    expected = [result.best.text for result in translate(translator, TextRequest(search, lines, attention=False))]
    for line in lines[:SINGLE]:
        seconds([line])
    before = time.process_time()
    speeds = [len(lines) / seconds(lines) for _ in range(repeats)]
    processor = 1e3 * (time.process_time() - before) / (repeats * len(lines))
    alone = [seconds([line]) for line in lines[:SINGLE] for _ in range(repeats)]
    print(f"translate, all lines: {spread(speeds)} sentences/s; processor {processor:.2f} ms", flush=True)
    print(f"translate, one line: {1e3 * statistics.median(alone):.0f} ms (median)", flush=True)
    return expected


def wait_for(server: "subprocess.Popen[str]") -> str:
    """Wait until the server is ready and return its address."""
    address = ""
    assert server.stderr is not None
    for line in server.stderr:
        print(line, end="", flush=True)
        if found := re.search(r"http://[\d.:]+", line):
            address = found[0]
        if "ready" in line:
            return address
    raise SystemExit("the server did not start")


async def measure(address: str, process: int, lines: Sequence[str], expected: Sequence[str], repeats: int) -> None:
    """Print speed, latencies and processor time of server and clients for each number of clients."""
    for clients in CLIENTS:
        some = range(len(lines)) if clients > 1 else range(min(len(lines), 4 * SINGLE))
        speeds: list[float] = []
        latencies: list[float] = []
        different, begun = 0, (processor_seconds(process), time.process_time())
        for _ in range(repeats):
            numbers = iter(some)
            before = time.perf_counter()
            work = (ask_all(address, numbers, lines, expected, latencies) for _ in range(clients))
            different += sum(await asyncio.gather(*work))
            speeds.append(len(some) / (time.perf_counter() - before))
        count = repeats * len(some)
        server, own = processor_seconds(process) - begun[0], time.process_time() - begun[1]
        cuts = statistics.quantiles(latencies, n=100)
        p50, p95, p99 = (1e3 * cuts[i] for i in (49, 94, 98))
        print(
            f"{clients} clients: {spread(speeds)} sentences/s; {p50:.0f} / {p95:.0f} / {p99:.0f} ms "
            f"(p50 / p95 / p99); processor {1e3 * server / count:.2f} ms, of clients {1e3 * own / count:.2f} ms; "
            f"{different} translations differ",
            flush=True,
        )


async def ask_all(
    address: str, numbers: Iterator[int], lines: Sequence[str], expected: Sequence[str], latencies: list[float]
) -> int:
    """Send lines over one connection until there are no more; return how many translations differ.

    It reads and writes the socket directly, since client libraries need more processor time than the server.
    """
    host, port = address.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    different = 0
    for i in numbers:
        body = json.dumps({"lines": [lines[i]]}).encode()
        head = (
            f"POST /translate HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
        )
        before = time.perf_counter()
        writer.write(head.encode() + b"\r\n\r\n" + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = int(answer.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        content = await reader.readexactly(length)
        latencies.append(time.perf_counter() - before)
        different += json.loads(content)["translations"][0]["text"] != expected[i]
    writer.close()
    await writer.wait_closed()
    return different


async def mixed(address: str, process: int, lines: Sequence[str], expected: Sequence[str], seconds: float) -> None:
    """Send good, bad, cancelled and oversized requests from 16 clients; print lost answers and the server's memory."""
    end, counts = time.monotonic() + seconds, {"good": 0, "refused": 0, "cancelled": 0, "lost": 0, "different": 0}
    memory = [resident(process)]

    async def work(client: httpx.AsyncClient, seed: int) -> None:
        rng = random.Random(seed)
        while time.monotonic() < end:
            try:
                counts[await one(client, rng)] += 1
            except (httpx.HTTPError, json.JSONDecodeError, KeyError) as error:
                counts["lost"] += 1
                print(f"lost: {type(error).__name__} {error}", flush=True)

    async def one(client: httpx.AsyncClient, rng: random.Random) -> str:
        """Send a request and return which of `counts` it is."""
        kind = rng.random()
        if kind < 0.2:
            answer = await client.post("/translate", **rng.choice(BAD))  # type: ignore[arg-type]  # each is some keyword of `post`
            return "refused" if 400 <= answer.status_code < 500 and "error" in answer.json() else "lost"
        chosen = rng.sample(range(len(lines)), rng.randint(1, 8))
        asked = client.post("/translate", json={"lines": [lines[i] for i in chosen]})
        try:
            answer = await asyncio.wait_for(asked, rng.random() * 0.05 if kind < 0.3 else None)
        except TimeoutError:
            return "cancelled"
        found = [line["text"] for line in answer.json()["translations"]]
        return "good" if found == [expected[i] for i in chosen] else "different"

    async def watch() -> None:
        while time.monotonic() < end:
            await asyncio.sleep(seconds / 10)
            memory.append(resident(process))

    async with httpx.AsyncClient(base_url=address, timeout=120) as client:
        await asyncio.gather(watch(), *(work(client, seed) for seed in range(16)))
    print(f"{seconds / 60:g} minutes of mixed requests: {counts}")
    print(f"the server's memory, MB: {', '.join(str(size) for size in memory)}")


def processor_seconds(process: int) -> float:
    """Return the processor time that a process has used so far, in all threads."""
    user, system = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def resident(process: int) -> int:
    """Return the resident memory of a process in megabytes."""
    return int(re.findall(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())[0]) // 1000


if __name__ == "__main__":
    run_script(main)
