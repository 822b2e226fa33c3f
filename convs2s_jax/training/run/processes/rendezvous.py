"""How the processes of a training find each other: from flags, the environment, or the cluster."""

import dataclasses
import socket
import sys
import time

import jax

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError, first_line
from convs2s_jax.training.run.processes import distributed, peers
from convs2s_jax.training.run.processes.holder import LOST
from convs2s_jax.training.run.processes.peers import Peers

JAX_LATER = 15
"""Seconds after `heartbeat_timeout` at which JAX's own service ends a process that `Peers` has not ended."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Processes:
    """How a process finds the others.

    Attributes:
      coordinator_address: host:port of process 0, a free port there (or JAX_COORDINATOR_ADDRESS).
      num_processes: number of processes (or JAX_NUM_PROCESSES).
      process_id: number of this process, from 0 (or JAX_PROCESS_ID).
      distributed: read all three from Slurm, Open MPI, Kubernetes or a TPU pod.
      initialization_timeout: seconds to wait for the other processes to start.
      heartbeat_timeout: seconds after which a silent process counts as lost and all others end.
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
            f"--{', --'.join(given)} without --{', --'.join(missing)}: set all three, as flags or in the environment, "
            "or use --distributed to read the rest from the cluster",
        )
        if self.num_processes is not None and self.process_id is not None:
            check(self.num_processes >= 1, f"--num_processes={self.num_processes}: use 1 or more")
            check(
                0 <= self.process_id < self.num_processes,
                f"--process_id={self.process_id}: with {self.num_processes} processes, use 0 to "
                f"{self.num_processes - 1}",
            )
        if self.coordinator_address is not None:
            _, colon, port = self.coordinator_address.rpartition(":")
            check(
                bool(colon) and port.isdigit(),
                f"--coordinator_address={self.coordinator_address}: use host:port, such as 10.0.0.1:1234",
            )
        for name in ("initialization_timeout", "heartbeat_timeout"):
            check(getattr(self, name) >= 1, f"--{name}={getattr(self, name)}: use 1 second or more")


def from_environment(processes: Processes, environment: dict[str, str]) -> Processes:
    """Fill in what the flags leave out from JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID."""
    address = processes.coordinator_address or environment.get("JAX_COORDINATOR_ADDRESS") or None

    def number(given: int | None, name: str) -> int | None:
        text = environment.get(name, "")
        check(
            given is not None or not text or text.isdigit(),
            f"in the environment, {name} is {text!r}: not a number",
        )
        return int(text) if given is None and text else given

    return dataclasses.replace(
        processes,
        coordinator_address=address,
        num_processes=number(processes.num_processes, "JAX_NUM_PROCESSES"),
        process_id=number(processes.process_id, "JAX_PROCESS_ID"),
    )


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
                f"--distributed: {reason}. Start under Slurm, Open MPI, Kubernetes or on a TPU pod, or set "
                "--coordinator_address, --num_processes and --process_id"
            ) from error
        raise UserError(f"{who} did not find the others {where} ({reason})") from error
    jax.devices()
    distributed.barrier("joined")  # no process may exit while another is still connecting
    if not distributed.is_multi_process():
        return None
    return peers.connect(processes.heartbeat_timeout, None if address is None else address.rpartition(":")[0])


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
