"""Connections between the processes of a command, through which all notice that one is lost, or is to stop.

JAX has a service for this, but it carries no messages. If a process is lost, it aborts the others (SIGABRT, 134). Its
callback for that moment cannot be used from Python (jax 0.10.2 fails to convert its argument), and
`jax_enable_recoverability` does not help processes that lose process 0. So process 0 has its own connection to each
other process. A killed process closes it, and a stopped one falls silent; either way the others end with status `LOST`.
"""

import contextlib
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NoReturn, TextIO

import jax
import numpy as np
from jax.experimental import multihost_utils

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import Tell, UserError, counted, first_line
from convs2s_jax.core.guard import LOST, ended_by_signals, user_message
from convs2s_jax.training.run.processes import distributed, peers
from convs2s_jax.training.run.processes.distributed import LINGER
from convs2s_jax.training.run.processes.options import Processes

PULSE = 1.0
"""Seconds between two signs of life."""
PAUSE = 5.0
"""Seconds after which a process that was itself stopped, or kept from running, gives the others time to be heard."""
FAREWELL = 1.0
"""Seconds for the others to close their connections after process 0 has reported a loss; twice that after a signal."""
GREETING = 30.0
"""Seconds in which a new connection must show the token of this training and be answered."""
ROOM = 1024
"""Bytes of the record in which process 0 announces where it listens."""


class Peers:
    """Context manager: inside, the loss of another process ends this one with a message and status `LOST`.

    After a user error of another process, which that one reports, this one ends with status 2 instead: to run the
    command again would not help.

    Lines that are sent: `alive`; `stop NAME`, after a signal; `lost K` and `refused K`, from process 0; `bye done`,
    `bye refused` (a user error) and `bye failed` (another one), at the end. After an error, the others have some
    seconds to end for the same reason.
    """

    def __init__(self, silence: float) -> None:
        """Watch nobody before `add` and the context.

        Args:
          silence: seconds after which a silent process counts as lost.
        """
        self._silence = silence
        self._links: dict[int, socket.socket] = {}
        self._heard: dict[int, float] = {}
        self._stop: Tell = lambda _: None
        self._over, self._stopping = threading.Event(), threading.Event()
        self._once = threading.Lock()

    def add(self, process: int, link: socket.socket, lines: TextIO) -> None:
        """Watch a process through a connection and the lines that it sends."""
        link.settimeout(None)
        self._heard[process] = time.monotonic()
        self._links[process] = link
        threading.Thread(target=self._listen, args=(process, lines), name=f"process {process}", daemon=True).start()

    def on_stop(self, action: Tell) -> None:
        """Set the function that a thread calls with the name of the signal that one of the processes received."""
        self._stop = action

    def stop(self, name: str) -> None:
        """Tell all processes, this one included, that a signal of this name arrived."""
        if not distributed.is_primary() and self._links:
            return self._say(f"stop {name}")  # process 0 tells all
        threading.Thread(target=self._stop_all, args=(name,), name="stop", daemon=True).start()

    def __enter__(self) -> "Peers":
        threading.Thread(target=self._beat, name="heartbeat", daemon=True).start()
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self._over.set()
        is_users = isinstance(error, Exception) and user_message(error) is not None
        self._say("bye done" if error is None else "bye refused" if is_users else "bye failed")

    def _say(self, line: str) -> None:
        """Send a line to all; a process that does not read is skipped, since its silence is noticed elsewhere."""
        for link in list(self._links.values()):
            with contextlib.suppress(OSError):
                link.send(f"{line}\n".encode(), socket.MSG_DONTWAIT)

    def _beat(self) -> None:
        """Give a sign of life at intervals, and look for processes that give none."""
        pulse = min(PULSE, self._silence / 5)
        awake = before = time.monotonic()
        while not self._over.wait(pulse):
            self._say("alive")
            now = time.monotonic()
            if now - before > PAUSE:  # they may have spoken while this process could not listen
                awake = now
            before = now
            for process, heard in list(self._heard.items()):
                if now - max(heard, awake) > self._silence:
                    self._end(process, f"silent for {self._silence:g} s", "lost")

    def _listen(self, process: int, lines: TextIO) -> None:
        """Read the lines of one process until its connection ends."""
        parting = ""
        # an error: for example, it closed with lines unread, which one at its end may do
        with contextlib.suppress(OSError, ValueError):
            for line in lines:
                self._heard[process] = time.monotonic()
                word, _, rest = line.strip().partition(" ")
                if word == "stop":
                    self._stop_all(rest)
                elif word in ("lost", "refused"):
                    self._end(int(rest), "reported by process 0", word)
                elif word == "bye":
                    parting = rest
                    if rest != "failed":  # it is silent from here on, until all have left
                        self._heard.pop(process, None)
                    if rest == "refused" and process == 0:  # it stays for `LINGER`, and JAX aborts who is later
                        self._over.wait(LINGER / 2)
                        break
        self._heard.pop(process, None)
        self._links.pop(process).close()
        lines.close()
        if parting == "failed":
            self._over.wait(LINGER + PAUSE)
        if parting != "done" and not self._stopping.is_set() and not self._over.is_set():
            self._end(process, "its connection closed", "refused" if parting == "refused" else "lost")

    def _stop_all(self, name: str) -> None:
        self._stopping.set()
        if distributed.is_primary():
            self._say(f"stop {name}")
            self._await_end(2 * FAREWELL)
        self._stop(name)

    def _await_end(self, seconds: float) -> None:
        """Wait until the others have exited: JAX aborts them if process 0 exits first."""
        deadline = time.monotonic() + seconds
        while self._links and time.monotonic() < deadline:
            time.sleep(0.02)

    def _end(self, process: int, how: str, word: str) -> NoReturn:
        """End this process because of another one that is "lost" or "refused"; process 0 ends all others first."""
        with self._once:
            if distributed.is_primary():
                self._stopping.set()
                self._say(f"{word} {process}")
                self._await_end(FAREWELL)
            if word == "refused":
                sys.stderr.write(f"this command cannot continue; process {process} reports why\n")
                sys.stderr.flush()
                os._exit(2)
            distributed.tell_loss(f"process {process}: {how}")
            os._exit(LOST)


def connect(silence: float, host: str | None) -> Peers:
    """Connect process 0 to each other process; all call this at the same time.

    Args:
      silence: seconds after which a silent process counts as lost.
      host: of process 0, if the command line sets it.
    """
    peers = Peers(silence)
    listener = None
    record = b""
    if distributed.is_primary():
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        listener = socket.create_server(("", 0), family=family, dualstack_ipv6=both)
        hosts = [host] if host else [socket.gethostname(), socket.getfqdn()]
        where = {"hosts": hosts, "port": listener.getsockname()[1], "token": secrets.token_hex(16)}
        record = json.dumps(where).encode()
    padded = np.frombuffer(record.ljust(ROOM), np.uint8)
    told = json.loads(bytes(np.asarray(multihost_utils.broadcast_one_to_all(padded))))
    if listener is not None:
        threading.Thread(target=_accept, args=(peers, listener, told["token"]), name="peers", daemon=True).start()
    elif not _greet(peers, told["hosts"], told["port"], told["token"]):
        sys.stderr.write(
            f"process {jax.process_index()} cannot reach process 0 at port {told['port']} of {told['hosts'][0]}: "
            "if a process is lost, JAX ends this one with status 134\n"
        )
    return peers


def _accept(peers: Peers, listener: socket.socket, token: str) -> None:
    """Let the other processes in, and nobody else. Each greeting has a thread: a silent stranger delays no one."""
    with listener:
        for _ in range(100 * jax.process_count()):  # strangers are turned away, but not for ever
            link, _ = listener.accept()
            threading.Thread(target=_admit, args=(peers, link, token), name="greeting", daemon=True).start()


def _admit(peers: Peers, link: socket.socket, token: str) -> None:
    """Watch a new connection if it shows the token, else close it."""
    link.settimeout(GREETING)
    lines = link.makefile(encoding="ascii")
    try:
        said, _, number = lines.readline(100).strip().partition(" ")
        if not secrets.compare_digest(said, token):
            raise ValueError("another token")
        peers.add(int(number), link, lines)
        link.sendall(b"alive\n")
    except (OSError, ValueError):
        link.close()
        lines.close()


def _greet(peers: Peers, hosts: list[str], port: int, token: str) -> bool:
    """Connect to process 0 and wait until it has noted this process; return whether it could be reached."""
    for host in hosts:
        try:
            link = socket.create_connection((host.strip("[]"), port), timeout=GREETING)
            link.sendall(f"{token} {jax.process_index()}\n".encode())
            lines = link.makefile(encoding="ascii")
            if lines.readline():
                peers.add(0, link, lines)
                return True
        except (OSError, UnicodeError):
            continue
    return False


JAX_LATER = 15
"""Seconds after `heartbeat_timeout` at which JAX's own service ends a process that `Peers` has not ended."""


def join(processes: Processes) -> Peers | None:
    """Connect to the other processes, before any device is used; None in a training of one process.

    Raises:
      UserError: --distributed is given and no cluster is found, or the address is invalid.
      SystemExit: with status `LOST`, if process 0 does not start in time; if others do not, JAX aborts this process.
    """
    address = processes.coordinator_address
    if not processes.distributed and address is None:
        return None
    who = "this process" if processes.process_id is None else f"process {processes.process_id}"
    where = "through the cluster" if address is None else f"at {address}"
    seconds = processes.initialization_timeout
    # if the others do not come, JAX ends this process itself, so the message must come first
    sys.stderr.write(f"{who} is looking for the others {where}, for at most {seconds} s\n")
    if address is not None and processes.process_id:
        _await_primary(address, seconds)
    try:
        with ended_by_signals():
            jax.distributed.initialize(
                processes.coordinator_address,
                processes.num_processes,
                processes.process_id,
                initialization_timeout=processes.initialization_timeout,
                heartbeat_timeout_seconds=processes.heartbeat_timeout + JAX_LATER,
            )
    except (ValueError, RuntimeError) as error:
        reason = first_line(error)
        if processes.distributed:
            raise UserError(
                f"--distributed: {reason.rstrip('.')}. Start under Slurm, Open MPI, Kubernetes or on a TPU pod, or set "
                "--coordinator_address, --num_processes and --process_id"
            ) from error
        if "RPC server" in reason:
            raise UserError(
                f"--coordinator_address={address}: {who} cannot listen there ({reason}): use an address of this "
                "machine and a port that no other program uses"
            ) from error
        raise UserError(f"{who} did not find the others {where} ({reason})") from error
    devices = jax.devices()
    distributed.barrier("joined")  # no process may exit while another is still connecting
    if not distributed.is_multi_process():
        return None
    _check_devices(Counter(device.process_index for device in devices))
    return peers.connect(processes.heartbeat_timeout, None if address is None else address.rpartition(":")[0])


def _check_devices(counts: Counter[int]) -> None:
    """Refuse processes with different numbers of devices, which JAX's collectives between processes require."""
    for process, count in sorted(counts.items()):
        check(
            count == counts[0],
            f"process {process} has {counted(count, 'device')}, process 0 has {counts[0]}: give each process the same "
            "number",
        )


@contextlib.contextmanager
def together(processes: Processes) -> Iterator[None]:
    """Connect to the other processes, for a command that has nothing to save. Errors are those of `join`.

    A signal ends this process at once, and the others as if it was lost. JAX's own handler of SIGTERM would only note
    the signal, since a training saves first.
    """
    settings: Any = jax.config
    settings.update("jax_enable_preemption_service", False)
    with ended_by_signals(), distributed.guarded(), join(processes) or contextlib.nullcontext():
        yield


def _await_primary(address: str, seconds: float) -> None:
    """Wait until process 0 accepts connections."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
            return
        except UnicodeError as error:
            raise UserError(f"--coordinator_address={address}: '{host}' is not a host name") from error
        except OSError as error:
            if time.monotonic() > deadline:
                sys.stderr.write(
                    f"no answer at --coordinator_address={address} ({error}): process 0 must run there, and all "
                    "machines must be able to reach it through this port\n"
                )
                # the machine of process 0 may still be starting, so the same command can be run again
                raise SystemExit(LOST) from error
            time.sleep(0.2)
