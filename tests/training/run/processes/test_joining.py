"""Processes find each other; when one is lost, the others end with a status after which the command is run again."""

import contextlib
import signal
import subprocess
import sys
import time
from collections import Counter

import jax
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.training.run.processes import distributed, joining
from convs2s_jax.training.run.processes.options import Processes, from_environment
from tests import processes, tiny

SILENCE = 5
MARGIN = 60
"""Seconds beyond `--heartbeat_timeout` in which two busy cores have to end a process."""
ENDED = {75, -signal.SIGABRT}
"""Statuses after which launch/run.sh starts a process again: ours, and that of JAX's service."""

WAITING = f"""
import signal, sys, time
from convs2s_jax.training.run.processes import distributed, joining
from convs2s_jax.training.run.processes.options import Processes

address, count, number, victim = sys.argv[1], *map(int, sys.argv[2:])
signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run where it is ignored
given = dict(coordinator_address=address, num_processes=count, process_id=number, heartbeat_timeout={SILENCE})
with joining.together(Processes(**given)):
    print("joined", flush=True)
    if number == victim:
        time.sleep(600)  # as if it prepared the corpus
    distributed.barrier("prepared")  # in C++, where Python's handlers do not run
"""


@contextlib.contextmanager
def waiting(count, victim):
    """Processes of which all but one wait for that one."""
    command = [sys.executable, "-c", WAITING, f"127.0.0.1:{processes.free_port()}", str(count)]
    known = {"cwd": tiny.ROOT, "env": processes.environment(1), "text": True}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    started = [subprocess.Popen([*command, str(i), str(victim)], **known, **pipes) for i in range(count)]
    try:
        for process in started:
            while (line := process.stdout.readline()) != "joined\n":  # gloo speaks there too
                assert line, process.stderr.read()
        time.sleep(1)  # they are in the barrier
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


@pytest.mark.drill
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(("count", "victim"), [(2, 0), (3, 2)])
def test_when_a_process_is_lost_the_others_end_with_a_status_to_start_them_again(count, victim, how, tally):
    with waiting(count, victim) as started:
        started[victim].send_signal(how)
        others = [process for process in started if process is not started[victim]]
        statuses = [process.wait(SILENCE + MARGIN) for process in others]
        if how in (signal.SIGTERM, signal.SIGINT):
            assert started[victim].wait(60) == -how
    tally(tries=len(others), losses=sum(status not in ENDED for status in statuses))


GIVEN = {"coordinator_address": "10.0.0.1:1234", "num_processes": 4, "process_id": 3}


def test_flags_come_before_the_environment():
    environment = {"JAX_COORDINATOR_ADDRESS": "host:9", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"}
    found = from_environment(Processes(), environment)
    assert (found.coordinator_address, found.num_processes, found.process_id) == ("host:9", 2, 1)
    assert from_environment(Processes(**GIVEN), environment) == Processes(**GIVEN)
    assert from_environment(Processes(), {}) == Processes()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"process_id": 1},
            r"^--process_id without --coordinator_address, --num_processes: set all three, as flags or in the env",
        ),
        ({**GIVEN, "process_id": 4}, r"^--process_id=4: with 4 processes, use 0 to 3$"),
        ({**GIVEN, "num_processes": 0}, r"^--num_processes=0: use 1 or more$"),
        ({**GIVEN, "coordinator_address": "host"}, r"^--coordinator_address=host: use host:port, such as 10.0.0.1"),
        ({**GIVEN, "coordinator_address": "host:1\u00b3"}, "^--coordinator_address=host:1\u00b3: use host:port"),
        ({**GIVEN, "coordinator_address": "host:65536"}, "^--coordinator_address=host:65536: use host:port"),
        ({**GIVEN, "coordinator_address": "host:0"}, "^--coordinator_address=host:0: use host:port"),
        ({"heartbeat_timeout": 0}, r"^--heartbeat_timeout=0: use 1 second or more$"),
    ],
)
def test_nonsense_is_refused(values, message):
    with pytest.raises(UserError, match=message):
        Processes(**values)


@pytest.mark.parametrize("text", ["one", "\u00b2", "-1", "2147483648", "9" * 5000])
def test_an_environment_that_is_no_number_is_refused(text):
    with pytest.raises(UserError, match=rf"^in the environment, JAX_PROCESS_ID is '{text}': not a number from 0 to 21"):
        from_environment(Processes(), {"JAX_PROCESS_ID": text})


def test_processes_with_different_numbers_of_devices_are_refused():
    joining.check_devices(Counter([0, 0, 1, 1]))
    with pytest.raises(UserError, match=r"^process 1 has 1 device, process 0 has 2: give each process the same num"):
        joining.check_devices(Counter([0, 0, 1, 2, 2]))


@pytest.mark.parametrize(
    ("host", "alone"), [("127.0.0.1", True), ("localhost", True), ("192.0.2.1", False), ("some.host", False)]
)
def test_process_0_listens_where_the_address_says(host, alone, monkeypatch):
    given = {}

    def initialize(*_, **named):
        given.update(named)
        raise RuntimeError("enough")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    address = f"{host}:1234"
    with pytest.raises(UserError, match=f"^process 0 did not find the others at {address} "):
        joining.join(Processes(coordinator_address=address, num_processes=2, process_id=0))
    assert given["coordinator_bind_address"] == (address if alone else None)


def test_who_finds_no_others_says_so(tmp_path):
    """Process 0 may still be on its way, so that the same command is to be started again."""
    address = f"--coordinator_address=127.0.0.1:{processes.free_port()}"
    arguments = ["--config=configs/cldr_en_de.py", f"--workdir={tmp_path}/run", "--initialization_timeout=2"]
    arguments += [address, "--num_processes=2", "--process_id=1"]
    process = processes.Process(arguments, 1, tmp_path / "log.txt")
    assert process.wait(60) == 75, process.told
    assert f"no answer at {address} ([Errno 111] Connection refused): " in process.told
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("error", "lost"),
    [
        (jax.errors.JaxRuntimeError("UNKNOWN: Gloo all-reduce failed: Connection reset by peer"), True),
        (jax.errors.JaxRuntimeError("UNAVAILABLE: heartbeat timeout"), True),
        (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes"), False),
        (jax.errors.JaxRuntimeError("INVALID_ARGUMENT: cuDNN execution plan failed"), False),
        (ValueError("Gloo"), False),
    ],
    ids=str,
)
def test_a_lost_process_is_told_from_other_errors(error, lost, monkeypatch):
    monkeypatch.setattr(distributed, "is_multi_process", lambda: True)
    assert distributed.is_loss(error) == lost
