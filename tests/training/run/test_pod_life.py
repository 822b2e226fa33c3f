"""The life of a preemptible pod, with local processes under launch/run.sh: preempted, killed, stopped, resized."""

import contextlib
import http.server
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests import processes, tiny
from tests.processes import saved

STEPS = 24
OPTIONS = {
    "training__max_steps": STEPS,
    "training__save_every": 1,
    "training__report_every": 1,
    "training__validate_every": 8,
    "mesh__data": 1,
    "mesh__fsdp": -1,
}
HEARTBEAT = 10
GRACE = 30
"""Seconds that Google's platform leaves a preempted machine."""


class Pod:
    """The processes of a training, each under launch/run.sh, which starts it again after status 75."""

    def __init__(self, folder: Path, config: Path, count: int, devices: int, **variables: str) -> None:
        """Start them; the variables are those of launch/run.sh."""
        self.folder, self.workdir = folder, folder / "run"
        common = [f"--config={config}", f"--workdir={self.workdir}", f"--heartbeat_timeout={HEARTBEAT}"]
        if count > 1:
            common += [f"--coordinator_address=127.0.0.1:{processes.free_port()}", f"--num_processes={count}"]
        known = {**processes.environment(devices), "PAUSE": "1", **variables}
        self.runs = []
        for i in range(count):
            own = [f"--process_id={i}"] if count > 1 else []
            command = [tiny.ROOT / "launch" / "run.sh", sys.executable, "train.py", *common, *own]
            with (folder / f"{i}.txt").open("a") as log:
                self.runs.append(subprocess.Popen(command, cwd=tiny.ROOT, env=known, stderr=log))

    def training(self, i: int) -> int:
        """The number of the training process under a run.sh."""
        found = processes.children(self.runs[i].pid)
        [child] = [child for child in found if b"train.py" in Path(f"/proc/{child}/cmdline").read_bytes()]
        return child

    def await_step(self, step: int) -> None:
        """Wait until a checkpoint of this step is there, or of a later one."""
        deadline = time.monotonic() + processes.LIMIT
        while saved(self.workdir) < step:
            assert all(run.poll() is None for run in self.runs), self.told()
            assert time.monotonic() < deadline, self.told()
            time.sleep(0.01)

    def wait(self) -> list[int]:
        """Status of each run.sh at its end."""
        return [run.wait(processes.LIMIT) for run in self.runs]

    def told(self) -> str:
        return "\n".join((self.folder / f"{i}.txt").read_text()[-3000:] for i in range(len(self.runs)))

    def end(self) -> None:
        """Nothing outlives a test."""
        for run in self.runs:
            processes.end(run.pid)
            run.wait()


@contextlib.contextmanager
def pod(*args, **variables):
    started = Pod(*args, **variables)
    try:
        yield started
    finally:
        started.end()


@contextlib.contextmanager
def metadata(answers: dict[str, str]):
    """Google's metadata of a machine; gives its address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answers[self.path.removeprefix("/")].encode())

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def trained(workdir: Path) -> list[int]:
    return [line["step"] for line in tiny.metrics(workdir) if line["split"] == "train"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Two processes of two devices, to the end in one go."""
    folder = tmp_path_factory.mktemp("undisturbed")
    with pod(folder, tiny.config_file(folder, **OPTIONS | {"training__save_every": STEPS}), 2, 2) as started:
        assert started.wait() == [0, 0], started.told()
    assert trained(folder / "run") == list(range(1, STEPS + 1))
    return folder / "run"


@pytest.mark.drill
def test_preempted_noticed_killed_and_stopped_a_pod_ends_with_the_same_bits(tmp_path, undisturbed, tally):
    """One after another: SIGTERM to one machine, a notice to one, SIGKILL, SIGSTOP and then the scheduler's SIGKILL."""
    config, seconds = tiny.config_file(tmp_path, **OPTIONS), []
    with pod(tmp_path, config, 2, 2) as started:
        started.await_step(3)
        begun = time.monotonic()
        started.runs[1].send_signal(signal.SIGTERM)
        # the machine that was told has more to do; the other one saved with it, and nobody told it why
        assert started.wait() == [0, 75], started.told()
        seconds.append(time.monotonic() - begun)
    answers = {"maintenance-event": "NONE", "preempted": "FALSE"}
    with metadata(answers) as address, pod(tmp_path, config, 2, 2, METADATA=address, POLL="0.2") as started:
        started.await_step(saved(tmp_path / "run") + 3)
        begun = time.monotonic()
        answers["maintenance-event"] = "TERMINATE_ON_HOST_MAINTENANCE"
        assert started.wait() == [75, 75], started.told()
        seconds.append(time.monotonic() - begun)
    with pod(tmp_path, config, 2, 2) as started:
        started.await_step(saved(tmp_path / "run") + 3)
        os.kill(started.training(1), signal.SIGKILL)
        started.await_step(saved(tmp_path / "run") + 3)  # both have been started again by their scripts
        stopped = started.training(0)
        os.kill(stopped, signal.SIGSTOP)
        time.sleep(HEARTBEAT + 5)  # the other one ends with 75 meanwhile, and waits for this one
        os.kill(stopped, signal.SIGKILL)
        assert started.wait() == [0, 0], started.told()
    assert max(seconds) < GRACE
    assert trained(tmp_path / "run") == list(range(1, STEPS + 1))
    assert tiny.digests(tmp_path / "run", STEPS) == tiny.digests(undisturbed, STEPS)
    tally(tries=4)
