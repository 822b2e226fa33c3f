"""Several processes as one training: how they find each other, agree, and end together."""

import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeVar

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError
from convs2s_jax.nn.types import Tree
from convs2s_jax.training import sharding

T = TypeVar("T")

LOST = 75
"""Exit status where another process was lost (EX_TEMPFAIL): the same command continues the run."""
PATIENCE = 24 * 3600
"""Seconds to wait for the others where one has long work to do. A process that dies ends the waiting much earlier."""
LINGER = 1
"""Seconds."""


@dataclass(frozen=True, kw_only=True)
class Processes:
    """How a process finds the others.

    coordinator_address: host:port of process 0, free there; num_processes, process_id: how many there are, and which
    one this is, from 0; distributed: find all three in what Slurm, Open MPI, Kubernetes or a TPU pod tell.
    initialization_timeout: seconds to wait for the others to start; heartbeat_timeout: seconds after which a silent
    process counts as lost and all others end.
    """

    coordinator_address: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    distributed: bool = False
    initialization_timeout: int = 300
    heartbeat_timeout: int = 100

    def __post_init__(self) -> None:
        named = {name: getattr(self, name) for name in ("coordinator_address", "num_processes", "process_id")}
        given = [name for name, value in named.items() if value is not None]
        missing = [name for name, value in named.items() if value is None]
        check(
            not given or not missing or self.distributed,
            f"--{', --'.join(given)} without --{', --'.join(missing)}: give all three, or --distributed to have the "
            "cluster asked for the others",
        )
        if self.num_processes is not None and self.process_id is not None:
            check(self.num_processes >= 1, f"--num_processes={self.num_processes}: use 1 or more")
            check(
                0 <= self.process_id < self.num_processes,
                f"--process_id={self.process_id}: with {self.num_processes} processes it is 0 to "
                f"{self.num_processes - 1}",
            )
        if self.coordinator_address is not None:
            _, colon, port = self.coordinator_address.rpartition(":")
            check(
                bool(colon) and port.isdigit(),
                f"--coordinator_address={self.coordinator_address}: write host:port, such as 10.0.0.1:1234",
            )
        for name in ("initialization_timeout", "heartbeat_timeout"):
            check(getattr(self, name) >= 1, f"--{name}={getattr(self, name)}: seconds; use 1 or more")


def from_environment(processes: Processes, environment: dict[str, str]) -> Processes:
    """What flags leave open, from JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID."""
    address = processes.coordinator_address or environment.get("JAX_COORDINATOR_ADDRESS") or None

    def number(given: int | None, name: str) -> int | None:
        text = environment.get(name, "")
        check(given is not None or not text or text.isdigit(), f"the environment's {name} is {text!r}: not a number")
        return int(text) if given is None and text else given

    return Processes(
        coordinator_address=address,
        num_processes=number(processes.num_processes, "JAX_NUM_PROCESSES"),
        process_id=number(processes.process_id, "JAX_PROCESS_ID"),
        distributed=processes.distributed,
        initialization_timeout=processes.initialization_timeout,
        heartbeat_timeout=processes.heartbeat_timeout,
    )


def join(processes: Processes) -> None:
    """Find the others, before any use of a device; a training of one process finds nobody and goes on.

    Raises:
      UserError: no cluster is found where one was promised, or the others do not come.
    """
    address = processes.coordinator_address
    if not processes.distributed and address is None:
        return
    who = "this process" if processes.process_id is None else f"process {processes.process_id}"
    where = "where the cluster says" if address is None else f"at {address}"
    seconds = processes.initialization_timeout
    # where the others do not come, JAX's service ends the process itself: it has to be said before
    sys.stderr.write(f"{who} looks for the others {where}, for {seconds} s at most\n")
    if address is not None and processes.process_id:
        _await_leader(address, seconds)
    try:
        jax.distributed.initialize(
            processes.coordinator_address,
            processes.num_processes,
            processes.process_id,
            initialization_timeout=processes.initialization_timeout,
            heartbeat_timeout_seconds=processes.heartbeat_timeout,
        )
    except (ValueError, RuntimeError) as error:
        reason = str(error).strip().splitlines()[0]
        if processes.distributed:
            raise UserError(
                f"--distributed: {reason}. Start under Slurm, Open MPI, Kubernetes or on a TPU pod, or give "
                "--coordinator_address, --num_processes and --process_id"
            ) from error
        raise UserError(f"{who} did not find the others {where} ({reason})") from error
    jax.devices()
    meet("joined")  # who leaves from here on leaves nobody who is still looking


def _await_leader(address: str, seconds: float) -> None:
    """Wait until process 0 listens."""
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise UserError(
                    f"nobody answers at --coordinator_address={address} ({error}): process 0 has to run there, and "
                    "to be reached through this port from all machines"
                ) from error
            time.sleep(0.2)


def several() -> bool:
    """Whether this training has more than one process."""
    return jax.process_count() > 1


def leads() -> bool:
    """Whether this is process 0, which alone writes text files and talks to the user."""
    return jax.process_index() == 0


def meet(name: str) -> None:
    """Wait for all processes, however long one of them works: collectives of arrays are not that patient.

    Args:
      name: of this meeting; no two of a run have the same.
    """
    if several():
        everyone = set(range(jax.process_count()))
        ocp.multihost.sync_global_processes(f"convs2s_jax: {name}", timeout=PATIENCE, processes=everyone)


def leader_first(name: str, work: Callable[[], T]) -> T:
    """Process 0 works first, then the others, who find its files. `name` is as in `meet`."""
    if leads():
        result = work()
        meet(name)
        return result
    meet(name)
    return work()


def agree(what: str, value: int) -> None:
    """Raise UserError on all processes where not all have the same value, in [0, 2^32)."""
    if several():
        values = multihost_utils.process_allgather(np.uint32(value))
        odd = [i for i, other in enumerate(values) if other != values[0]]
        check(not odd, f"process {odd[0] if odd else 0} has another {what} than process 0: give all the same")


def all_of(flag: bool) -> bool:
    """Whether it holds on all processes."""
    return bool(np.all(multihost_utils.process_allgather(np.array(flag)))) if several() else flag


def of_leader(flag: bool) -> bool:
    """What process 0 says."""
    return bool(multihost_utils.broadcast_one_to_all(np.array(flag))) if several() else flag


def local(mesh: Mesh, tree: Tree) -> Tree:
    """Arrays that lie over the whole mesh, whole on a device of this process."""
    whole = jax.jit(lambda x: x, out_shardings=sharding.replicated(mesh))(tree)
    return jax.tree.map(lambda x: x.addressable_data(0), whole)


def mine(count: int) -> range:
    """The share of this process in `count` pieces of work: every n-th."""
    return range(jax.process_index(), count, jax.process_count())


def collect(lines: Sequence[str], count: int, *, name: str) -> list[str]:
    """All `count` lines, where each process gives those of its share. `name` is as in `meet`."""
    if not several():
        return list(lines)
    meet(name)
    text = np.frombuffer(json.dumps(list(lines)).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(len(text)))
    padded = np.zeros(max(sizes), np.uint8)
    padded[: len(text)] = text
    parts = multihost_utils.process_allgather(padded)
    found = [json.loads(bytes(part[:size])) for part, size in zip(parts, sizes, strict=True)]
    return [found[i % len(found)][i // len(found)] for i in range(count)]


def reached_signal(step: int) -> bool:
    """Whether a signal came to any process: all are told at the same step. To be asked at every step."""
    return several() and multihost_utils.reached_preemption_sync_point(step)


def pass_on() -> None:
    """Treat another signal as SIGTERM, which JAX's service passes on to all processes."""
    os.kill(os.getpid(), signal.SIGTERM)


def leave(status: int) -> NoReturn:
    """End this process. With others at work it does not wait for them: they notice, and end as well.

    Process 0, through which they find each other, gives them a moment to come to the same end.
    """
    if jax.distributed.is_initialized() and status != 0:
        if leads():
            time.sleep(LINGER)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def guarded(work: Callable[[], None]) -> None:
    """Run a training; where another process is lost, say so and end with status `LOST`."""
    try:
        work()
    except Exception as error:
        if isinstance(error, UserError) or not jax.distributed.is_initialized():
            raise
        if isinstance(error, jax.errors.JaxRuntimeError) and "RESOURCE_EXHAUSTED" not in str(error):
            first = str(error).strip().splitlines()[0][:200]
            sys.stderr.write(
                f"another process of this training was lost ({first}): run the same command again on all of them to "
                "continue from the last checkpoint\n"
            )
            leave(LOST)
        traceback.print_exc()
        leave(1)
