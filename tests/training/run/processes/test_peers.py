"""Processes find each other; a lost one ends the others with a sentence and status 75; an early signal ends all."""

import contextlib
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter

import jax
import numpy as np
import pytest

from convs2s_jax.commands import train
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.guard import LOST
from convs2s_jax.training.mesh import MeshConfig, make
from convs2s_jax.training.run.processes import distributed, peers
from convs2s_jax.training.run.processes.options import Processes, from_environment
from convs2s_jax.training.run.processes.peers import Peers
from tests import processes, tiny
from tests import processes as real

SILENCE = 4
MARGIN = 6
"""Seconds beyond `--heartbeat_timeout` in which two busy cores have to end a process."""

WAITING = f"""
import sys, time
from convs2s_jax.training.run.processes import distributed
from convs2s_jax.training.run.processes import peers
from convs2s_jax.training.run.processes.interrupts import Interrupts
from convs2s_jax.training.run.processes.options import Processes

address, count, number, victim = sys.argv[1], *map(int, sys.argv[2:])
given = dict(coordinator_address=address, num_processes=count, process_id=number, heartbeat_timeout={SILENCE})
found = peers.join(Processes(**given))

with distributed.guarded(), found, Interrupts(own_process=True, peers=found):
    print("joined", flush=True)
    if number == victim:
        time.sleep(600)  # as if it prepared the corpus
    distributed.barrier("prepared")
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
        yield started
    finally:
        for process in started:
            process.kill()
            process.communicate()


@pytest.fixture
def watching(monkeypatch):
    """`watching(silence)`: a process that watches process 1 over `there`; `statuses` gets its status at its end."""
    monkeypatch.setattr(peers, "PULSE", 0.05)
    monkeypatch.setattr(peers, "FAREWELL", 0.1)
    monkeypatch.setattr(peers, "PAUSE", 0.2)  # a test that is itself kept from running loses nobody

    @contextlib.contextmanager
    def watched(silence):
        statuses, before = queue.Queue(), set(threading.enumerate())
        monkeypatch.setattr(os, "_exit", statuses.put)
        here, there = socket.socketpair()
        found = Peers(silence)
        with found, there:
            found.add(1, here, here.makefile(encoding="ascii"))
            yield found, there, statuses
        for thread in set(threading.enumerate()) - before:  # one that is late would end the next test
            thread.join(10)
            assert not thread.is_alive()

    return watched


def listening(process):
    """The thread that reads what a process says."""
    return next(thread for thread in threading.enumerate() if thread.name == f"process {process}")


def test_one_that_is_done_may_be_silent_until_all_have_left(watching):
    """Process 0 writes back for minutes after the others have ended their part; their connections stay open."""
    with watching(silence=0.5) as (found, there, statuses):
        there.sendall(b"bye done\n")
        with pytest.raises(queue.Empty):
            statuses.get(timeout=1.5)  # three times the silence of one that is lost
        assert not found._heard


def test_a_closed_connection_is_a_loss(watching, capfd):
    with watching(silence=60) as (_, there, statuses):
        there.sendall(b"alive\n")
        there.close()
        assert statuses.get(timeout=60) == 75
    said = "another process of this command was lost (process 1: its connection closed): run the same command again"
    assert said in capfd.readouterr().err


def test_a_silent_process_is_lost_and_one_that_speaks_is_not(watching, capfd):
    with watching(silence=0.5) as (_, there, statuses):
        for _ in range(20):
            there.sendall(b"alive\n")
            time.sleep(0.05)
        assert statuses.empty()
        assert statuses.get(timeout=60) == 75
    assert "process 1: silent for 0.5 s" in capfd.readouterr().err


@pytest.mark.parametrize("unread", [False, True])
def test_a_process_that_is_done_is_no_loss_and_one_that_failed_is_one_later(watching, monkeypatch, unread):
    """A connection that is closed with lines unread is reset, as seen from the other side."""
    monkeypatch.setattr(peers, "LINGER", 0.1)
    monkeypatch.setattr(peers, "PULSE", 60.0)  # nothing else is sent
    with watching(silence=600) as (found, there, statuses):
        reading = listening(1)
        if unread:
            found._say("alive")
        there.sendall(b"bye done\n")
        there.close()
        reading.join(60)
        assert statuses.empty()
        here, other = socket.socketpair()
        found.add(2, here, here.makefile(encoding="ascii"))
        other.sendall(b"bye failed\n")
        other.close()
        assert statuses.get(timeout=60) == 75


def test_a_user_error_of_another_process_ends_this_one_with_its_status(watching, capfd):
    """With 75 launch/run.sh would have started this one again, in vain."""
    with watching(silence=60) as (_, there, statuses):
        there.sendall(b"bye refused\n")
        with pytest.raises(queue.Empty):
            statuses.get(timeout=0.3)  # process 0 waits: JAX aborts the other one if this one is gone
        there.close()
        assert statuses.get(timeout=60) == 2
    assert "this command cannot continue; process 1 reports why\n" in capfd.readouterr().err


@pytest.mark.parametrize("line", [b"bye refused\n", b"refused 2\n"])
def test_a_user_error_that_process_0_has_or_reports_ends_the_others_before_it(watching, monkeypatch, capfd, line):
    monkeypatch.setattr(peers, "LINGER", 0.1)
    monkeypatch.setattr(peers.distributed, "is_primary", lambda: False)
    with watching(silence=60) as (found, _, statuses):
        here, there = socket.socketpair()
        with there:
            found.add(0, here, here.makefile(encoding="ascii"))
            there.sendall(line)
            assert statuses.get(timeout=60) == 2  # the connection is open
    said = f"process {2 if b'2' in line else 0} reports why"
    assert said in capfd.readouterr().err


@pytest.mark.parametrize(
    ("error", "line"),
    [(None, "bye done"), (UserError("data"), "bye refused"), (ValueError("ours"), "bye failed")],
)
def test_at_its_end_a_process_tells_the_others_what_kind_of_error_it_has(error, line):
    here, there = socket.socketpair()
    with here, there:
        with contextlib.suppress(UserError, ValueError), Peers(silence=600) as found:
            found._links[1] = here
            if error is not None:
                raise error
        assert there.recv(1000).decode().splitlines()[-1] == line


def test_the_others_hear_of_an_error_between_the_connection_and_the_training(monkeypatch):
    """As without a home folder for the copy of a workdir in a store: to them the connection closed, a loss."""
    here, there = socket.socketpair()
    found = Peers(silence=600)
    found._links[1] = here

    def without_home(_):
        raise RuntimeError

    monkeypatch.setattr(peers, "join", lambda _: found)
    monkeypatch.setattr("convs2s_jax.core.compiled_programs.folder_of", without_home)
    with here, there:
        ended = processes.called(train.console, "train.py", "--config=cldr_en_de", "--workdir=gs://bucket/run")
        there.settimeout(10)
        assert there.recv(1000).decode().splitlines()[-1] == "bye refused"
    assert (ended.returncode, ended.stderr.count("no home folder")) == (2, 1)


@pytest.fixture
def accepting(monkeypatch):
    """A process 0 that lets others in, one that greets it, and the address; all is closed afterwards."""
    monkeypatch.setattr(os, "_exit", lambda _: None)  # a stranger that is let in, and leaves, is a loss
    found, other, before = Peers(silence=60), Peers(silence=60), set(threading.enumerate())

    def accept():
        with contextlib.suppress(OSError):  # closed at the end
            peers._accept(found, listener, "token")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield found, other, listener.getsockname()
        for each in (found, other):  # no closed connection is a loss any more
            each._over.set()
        for link in [*found._links.values(), *other._links.values()]:
            with contextlib.suppress(OSError):  # the other end was faster
                link.shutdown(socket.SHUT_RDWR)
        listener.shutdown(socket.SHUT_RDWR)
        for thread in set(threading.enumerate()) - before:
            thread.join(60)
            assert not thread.is_alive()


def test_strangers_are_turned_away(accepting, monkeypatch):
    found, other, address = accepting
    monkeypatch.setattr(peers, "GREETING", 600.0)
    with socket.create_connection(address) as stranger:
        stranger.sendall(b"GET 1\r\n")  # a number, as the token of this training would come with
        assert stranger.recv(9) == b""
    assert not found._links
    with socket.create_connection(address):  # one that says nothing delays no other
        since = time.monotonic()
        assert peers._greet(other, ["127.0.0.1"], address[1], "token")
        assert time.monotonic() - since < peers.GREETING / 2
    assert list(found._links) == [0]


def test_a_process_that_a_firewall_keeps_from_process_0_says_so_and_goes_on(monkeypatch, capsys):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]  # where nobody listens any more
    record = json.dumps({"hosts": ["127.0.0.1", "a" * 300], "port": port, "token": "token"})  # no name of a machine
    monkeypatch.setattr(peers.distributed, "is_primary", lambda: False)
    monkeypatch.setattr(
        peers.multihost_utils, "broadcast_one_to_all", lambda _: np.frombuffer(record.encode(), np.uint8)
    )
    with peers.connect(60, None) as found:
        assert not found._links
    assert f"cannot reach process 0 at port {port} of 127.0.0.1: if a process is lost" in capsys.readouterr().err


def ended(started, seconds):
    """(status, standard error) of each process, which ends in time."""
    deadline = time.monotonic() + seconds
    return [
        (process.returncode, told)
        for process in started
        for _, told in [process.communicate(timeout=max(0.1, deadline - time.monotonic()))]
    ]


@pytest.mark.drill
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize(("count", "victim"), [(2, 0), (2, 1), (3, 0), (3, 2)])
def test_when_a_process_is_killed_or_stopped_the_others_say_so_and_end_with_75(count, victim, how, tally):
    with waiting(count, victim) as started:
        started[victim].send_signal(how)
        others = [process for process in started if process is not started[victim]]
        found = ended(others, SILENCE + MARGIN)
    why = "its connection closed" if how == signal.SIGKILL else f"silent for {SILENCE} s"
    reason = rf"process {victim}: ({why}|reported by process 0)"
    # where process 0 is killed, JAX's own service may be faster (docs/distributed.md): its error is the reason then, or
    # it aborts, and run.sh begins again
    leader = (victim, how) == (0, signal.SIGKILL)
    reason = f"({reason}|UNAVAILABLE: .*)" if leader else reason
    said = rf"another process of this command was lost \({reason}\): run the same"
    faster = -signal.SIGABRT if leader else None
    right = [
        (status == 75 and re.search(said, told) is not None) or (status == faster and "JAX distributed service" in told)
        for status, told in found
    ]
    for (status, told), fine in zip(found, right, strict=True):
        if not fine:
            sys.stderr.write(f"ended with status {status}: {told[-3000:]}\n")  # shown with the failure
    tally(tries=len(others), losses=right.count(False))


@pytest.mark.drill
@pytest.mark.parametrize("receiver", [0, 1, 2])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_to_one_process_before_the_first_update_ends_all(receiver, name, tally):
    with waiting(3, 0) as started:
        started[receiver].send_signal(signal.Signals[name])
        found = ended(started, MARGIN)
    right = [status == 0 and f"{name}: stopped before the first update" in told for status, told in found]
    tally(tries=3, losses=right.count(False))


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
    peers._check_devices(Counter([0, 0, 1, 1]))
    with pytest.raises(UserError, match=r"^process 1 has 1 device, process 0 has 2: give each process the same num"):
        peers._check_devices(Counter([0, 0, 1, 2, 2]))


def test_a_single_process_is_its_own_primary_and_agrees_with_itself(tmp_path):
    peers.join(Processes())
    assert not distributed.is_multi_process()
    assert distributed.is_primary()
    assert distributed.primary_first("work", lambda: 5) == 5
    assert distributed.primary_only("work", lambda: 5) == 5
    distributed.agree_on_folder(tmp_path)
    assert not any(tmp_path.iterdir())
    distributed.agree("corpus", 7)
    assert distributed.true_on_all(True)
    assert not distributed.true_on_all(False)
    assert list(distributed.local_share(3)) == [0, 1, 2]
    assert distributed.collect(["a", "b"], 2, name="work") == ["a", "b"]
    assert not distributed.reached_signal(1)


def test_what_lies_over_the_mesh_is_put_together():
    mesh = make(MeshConfig(data=2, fsdp=4))
    x = np.arange(16.0, dtype=np.float32)
    spec = jax.sharding.PartitionSpec(("fsdp", "data"))
    whole = distributed.local(mesh, {"x": jax.device_put(x, jax.sharding.NamedSharding(mesh, spec))})["x"]
    assert len(whole.devices()) == 1
    np.testing.assert_array_equal(whole, x)


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        pytest.param(["--distributed"], 2, "train.py: --distributed: ", marks=pytest.mark.drill),
        (
            ["--coordinator_address=127.0.0.1:{port}", "--num_processes=2", "--process_id=1"],
            75,
            "no answer at --coordinator_address=127.0.0.1:{port} ([Errno 111] Connection refused): ",
        ),
    ],
    ids=["no cluster", "nobody comes"],
)
def test_who_finds_no_others_says_so(tmp_path, arguments, status, sentence):
    """Process 0 may still be on its way, so that the same command is to be started again; a cluster is not."""
    port = real.free_port()
    arguments = [argument.format(port=port) for argument in arguments]
    log = tmp_path / "log.txt"
    common = ["--config=configs/cldr_en_de.py", f"--workdir={tmp_path}/run", "--initialization_timeout=2"]
    process = real.Process([*common, *arguments], 1, log)
    assert process.wait(60) == status, process.told
    assert sentence.format(port=port) in process.told
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


CHECKING = """
import signal, sys, time
from convs2s_jax.training.run.processes import distributed
from convs2s_jax.training.run.processes import peers
from convs2s_jax.training.run.processes.options import Processes

address, signalled, number = sys.argv[1], *map(int, sys.argv[2:])
signal.signal(signal.SIGINT, signal.default_int_handler)  # the tests may run where it is ignored
with peers.together(Processes(coordinator_address=address, num_processes=2, process_id=number)):
    print("together", flush=True)
    if number == signalled:
        distributed.barrier("never")  # in C++, where Python's handlers do not run
    time.sleep(100)
"""


@pytest.mark.drill
@pytest.mark.parametrize(("number", "sent"), [(0, signal.SIGTERM), (1, signal.SIGTERM), (1, signal.SIGINT)])
def test_a_signal_ends_all_processes_of_a_command_that_saves_nothing(number, sent):
    command = [sys.executable, "-c", CHECKING, f"127.0.0.1:{real.free_port()}", str(number)]
    known = {"cwd": tiny.ROOT, "env": real.environment(1), "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    both = [subprocess.Popen([*command, str(i)], text=True, **known) for i in range(2)]
    try:
        for process in both:
            while (line := process.stdout.readline()) != "together\n":  # gloo speaks there too
                assert line, process.stderr.read()
        time.sleep(1)  # it is in the barrier
        both[number].send_signal(sent)
        assert both[number].wait(60) == -sent
        assert both[1 - number].wait(60) == LOST
        said = f"another process of this command was lost (process {number}: its connection closed): run the same"
        assert said in both[1 - number].stderr.read()
    finally:
        for process in both:
            process.kill()
            process.communicate()
