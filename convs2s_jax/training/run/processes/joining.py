"""How the processes of a command find each other.

JAX's service then watches them: if one is silent for `--heartbeat_timeout`, it aborts the others (SIGABRT, status 134).
Mostly a collective fails earlier, and `distributed.guarded` exits with `LOST`. The same command can be run again after
both.
"""

import contextlib
import ipaddress
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError, counted, first_line
from convs2s_jax.core.guard import LOST, ended_by_signals
from convs2s_jax.training.run.processes import distributed
from convs2s_jax.training.run.processes.options import Processes


def join(processes: Processes) -> None:
    """Connect to the other processes, before any device is used. Does nothing in a training of one process.

    Raises:
      UserError: --distributed is given and no cluster is found, or the address is invalid.
      SystemExit: with status `LOST`, if process 0 does not start in time; if others do not, JAX aborts this process.
    """
    address = processes.coordinator_address
    if not processes.distributed and address is None:
        return
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
                initialization_timeout=seconds,
                heartbeat_timeout_seconds=processes.heartbeat_timeout,
                coordinator_bind_address=None if address is None else _own_interface(address),
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
    check_devices(Counter(device.process_index for device in devices))


def check_devices(counts: Counter[int]) -> None:
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
    with ended_by_signals(), distributed.guarded():
        join(processes)
        yield


def _own_interface(address: str) -> str | None:
    """Return the address if process 0 can listen at just it; None for that of JAX, by default all interfaces.

    It must be an IP address of this machine or localhost: other names may stand for another interface here than on
    other machines, as 127.0.1.1 on Debian.
    """
    host = address.rpartition(":")[0].strip("[]")
    try:
        numeric = "127.0.0.1" if host == "localhost" else str(ipaddress.ip_address(host))
        socket.create_server((numeric, 0), family=socket.AF_INET6 if ":" in numeric else socket.AF_INET).close()
    except (OSError, ValueError):
        return None
    return address


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
