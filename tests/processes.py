"""Programs as a user starts them: within this process, or as real processes over loopback with devices of their own."""

import contextlib
import io
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from unittest import mock

from tests.tiny import ROOT

LIMIT = 300
"""Seconds after which a run that does not end has failed."""


def called(program: Callable[[Sequence[str]], None], *arguments: object, text: str = "") -> subprocess.CompletedProcess:
    """A program of this package called within this process, which saves the start of another one.

    Args:
      program: takes the arguments, and ends with SystemExit where its status is not 0.
      arguments: of the command line, without the program's name.
      text: its standard input.
    """
    source, out, err = io.TextIOWrapper(io.BytesIO(text.encode())), io.TextIOWrapper(io.BytesIO()), io.StringIO()
    status = 0
    with mock.patch("sys.stdin", source), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            program([str(argument) for argument in arguments])
        except SystemExit as end:
            status = end.code
    out.flush()
    return subprocess.CompletedProcess(arguments, status, out.buffer.getvalue().decode(), err.getvalue())


def free_port() -> int:
    """A port that nobody listens on, below those that systems give to outgoing connections.

    One of those can be taken before a program of the test gets to it.
    """
    for port in random.SystemRandom().sample(range(10_000, 32_000), 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free")


def environment(devices: int) -> dict[str, str]:
    """That of the tests with another number of devices."""
    count = f"--xla_force_host_platform_device_count={devices}"
    flags = re.sub(r"--xla_force_host_platform_device_count=\d+", count, os.environ["XLA_FLAGS"])
    return {**os.environ, "XLA_FLAGS": flags}


def scaled(action: str, *own: Sequence[str]) -> list[tuple[int, str]]:
    """Status and output of `convs2s scale` in processes of one device that meet, each with arguments of its own."""
    code = "from convs2s_jax.commands import convs2s; convs2s.console()"
    common = [sys.executable, "-c", code, "scale", action, f"--coordinator_address=127.0.0.1:{free_port()}"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    started = [
        subprocess.Popen(
            [*common, f"--num_processes={len(own)}", f"--process_id={i}", *more], env=environment(1), cwd=ROOT, **pipes
        )
        for i, more in enumerate(own)
    ]
    try:
        told = [process.communicate(timeout=LIMIT)[0] for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, text) for process, text in zip(started, told, strict=True)]


class Process:
    """A running train.py whose standard error goes to a file."""

    def __init__(
        self, arguments: Sequence[str], devices: int, log: Path, variables: Mapping[str, str] | None = None
    ) -> None:
        command = [sys.executable, "train.py", *arguments]
        with log.open("w") as file:
            known = {**environment(devices), **(variables or {})}
            self.popen = subprocess.Popen(command, cwd=ROOT, env=known, stderr=file)
        self._log = log

    @property
    def told(self) -> str:
        return self._log.read_text()

    def wait(self, seconds: float = LIMIT) -> int:
        return self.popen.wait(timeout=seconds)


@contextlib.contextmanager
def running(
    config: Path,
    workdir: Path,
    count: int,
    devices: int,
    *,
    others: Sequence[Sequence[str]] = (),
    variables: Sequence[Mapping[str, str]] = (),
    heartbeat: int = 20,
) -> Iterator[list[Process]]:
    """`count` processes of one training, told of each other by flags.

    others, variables: further arguments and environment variables, for each process its own; all have none otherwise.
    """
    common = [f"--coordinator_address=127.0.0.1:{free_port()}", f"--num_processes={count}"]
    common += [f"--heartbeat_timeout={heartbeat}"]
    arguments = [[*common, f"--process_id={i}", *(others[i] if others else ())] for i in range(count)]
    with launched(config, workdir, devices, arguments, variables or [{}] * count) as started:
        yield started


@contextlib.contextmanager
def launched(
    config: Path,
    workdir: Path,
    devices: int,
    arguments: Sequence[Sequence[str]],
    variables: Sequence[Mapping[str, str]],
) -> Iterator[list[Process]]:
    """A process for each list of arguments and its environment variables; none outlives the block."""
    logs = workdir.parent / f"{workdir.name}.logs"
    logs.mkdir(exist_ok=True)
    common = [f"--config={config}", f"--workdir={workdir}"]
    started = [
        Process([*common, *own], devices, logs / f"{i}.txt", known)
        for i, (own, known) in enumerate(zip(arguments, variables, strict=True))
    ]
    try:
        yield started
    finally:
        for process in started:
            if process.popen.poll() is None:
                process.popen.send_signal(signal.SIGKILL)
                process.popen.wait()


def run(config: Path, workdir: Path, count: int, devices: int) -> list[str]:
    """A training of several processes to its end; what each told."""
    with running(config, workdir, count, devices) as processes:
        for process in processes:
            assert process.wait() == 0, process.told
        return [process.told for process in processes]


def await_(condition: Callable[[], bool], *running: Process) -> None:
    """Wait until a condition holds, while these processes run."""
    deadline = time.monotonic() + LIMIT
    while not condition():
        for process in running:
            assert process.popen.poll() is None, process.told
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_for_step(processes: Sequence[Process], workdir: Path, step: int) -> None:
    """Until a checkpoint of this step or a later one is there."""
    await_(lambda: saved(workdir) >= step, *processes)


def saved(workdir: Path) -> int:
    """Step of the newest checkpoint that is whole; 0 if there is none."""
    folder = workdir / "checkpoints"
    return max((int(e.name) for e in folder.iterdir() if e.name.isdigit()), default=0) if folder.is_dir() else 0
