"""launch/run.sh: which statuses start a training again, how signals reach it, and notices of a machine's end."""

import http.server
import os
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.launch.standins import LAUNCH, StandIns

ENDS = """
count=$(wc -l <"$LOG")
statuses=($STATUSES)
status=${statuses[count - 1]}
case $status in
  killed) kill -KILL $$ ;;
  aborted) kill -ABRT $$ ;;
esac
exit "$status"
"""
"""Ends with the status of its number."""

WAITS = """
trap 'echo signalled >>"$LOG"; sleep 0.3; exit 0' TERM
echo $$ >"$LOG.pid"
echo ready >>"$LOG"
for ((i = 0; i < 600; i++)); do sleep 0.05; done
exit 3
"""
"""Ends by SIGTERM with 0, as a training does once it has saved."""


@pytest.fixture
def programs(tmp_path):
    return StandIns(tmp_path)


@pytest.mark.parametrize(
    ("statuses", "status", "starts"),
    [
        ("0", 0, 1),
        ("75 75 0", 0, 3),
        ("2 0", 2, 1),
        ("1 0", 1, 1),
        ("130 0", 130, 1),
        ("75 2", 2, 2),
        ("75 75 75 75 0", 75, 4),
        ("killed aborted 0", 0, 3),
    ],
)
def test_75_alone_starts_again(programs, statuses, status, starts):
    """Three times at most here; one that was killed counts as 75, as the others end with 75 and wait for it."""
    programs.add("training", ENDS)
    found = programs.call("run.sh", "training", STATUSES=statuses, LOG=str(programs.log), RETRIES="3", PAUSE="0")
    assert (found.returncode, len(programs.calls())) == (status, starts), found.stderr


def started(programs, **variables):
    programs.add("training", WAITS)
    known = programs.environment({"LOG": str(programs.log), **variables})
    process = subprocess.Popen([LAUNCH / "run.sh", "training", "--a=b c"], env=known, stderr=subprocess.DEVNULL)
    wait_for(programs, ["ready"])
    return process


def wait_for(programs, line):
    deadline = time.monotonic() + 30
    while line not in programs.calls():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_signal_is_passed_on_once_and_the_end_says_that_there_is_more_to_do(programs):
    process = started(programs)
    process.send_signal(signal.SIGTERM)
    time.sleep(0.1)
    process.send_signal(signal.SIGTERM)  # a training that got it twice would end without a save
    assert process.wait(30) == 75
    assert programs.calls() == [["training", "--a=b c"], ["ready"], ["signalled"]]


def test_where_the_scheduler_signals_the_training_nothing_is_passed_on(programs):
    process = started(programs, PASS_SIGNALS="no")
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert ["signalled"] not in programs.calls()
    os.kill(int(Path(f"{programs.log}.pid").read_text()), signal.SIGTERM)
    assert process.wait(30) == 75


@pytest.mark.parametrize(("folder", "kept"), [("gs://bucket/a/cache/compiled", "unset"), ("/shared/a", "/shared/a")])
def test_programs_are_not_kept_in_an_object_store(programs, folder, kept):
    """The scripts name a folder of the workdir; JAX would fail to write it in a store, and keep nothing anywhere."""
    programs.add("training", 'echo "${JAX_COMPILATION_CACHE_DIR-unset}"')
    found = programs.call("run.sh", "training", JAX_COMPILATION_CACHE_DIR=folder)
    assert (found.returncode, found.stdout) == (0, f"{kept}\n"), found.stderr


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(
    ("path", "answer"), [("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE"), ("preempted", "TRUE")]
)
def test_a_notice_of_the_machines_end_saves(programs, path, answer):
    """Answered as Google's metadata server does, which wants its header."""
    answers = {"maintenance-event": "NONE", "preempted": "FALSE"}

    class Metadata(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            known = self.headers["Metadata-Flavor"] == "Google"
            self.send_response(200 if known else 403)
            self.end_headers()
            self.wfile.write(answers[self.path.removeprefix("/instance/")].encode() if known else b"")

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/instance"
        process = started(programs, METADATA=address, POLL="0.1", NO_PROXY="127.0.0.1")
        time.sleep(0.5)
        assert ["signalled"] not in programs.calls()
        answers[path] = answer
        assert process.wait(30) == 75
        server.shutdown()
    assert ["signalled"] in programs.calls()
