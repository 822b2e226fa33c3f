"""The flags by which the processes of a training find each other. `--help` imports them, so JAX is not needed here."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from convs2s_jax.core.config import check

MOST = 2**31 - 1
"""Largest number of processes that JAX accepts."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Processes:
    """How a process finds the others.

    Attributes:
      coordinator_address: host:port of process 0, a free port there (or JAX_COORDINATOR_ADDRESS). An IP
        address or localhost is the only interface on which it listens.
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
            port = re.fullmatch(".*:([0-9]{1,5})", self.coordinator_address)
            check(
                port is not None and 0 < int(port[1]) <= 65535,
                f"--coordinator_address={self.coordinator_address}: use host:port, such as 10.0.0.1:1234",
            )
        for name in ("initialization_timeout", "heartbeat_timeout"):
            check(getattr(self, name) >= 1, f"--{name}={getattr(self, name)}: use 1 second or more")


def from_environment(processes: Processes, environment: Mapping[str, str]) -> Processes:
    """Fill in what the flags leave out from JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID."""
    found: dict[str, Any] = {}
    for field in ("coordinator_address", "num_processes", "process_id"):
        name = f"JAX_{field.upper()}"
        text = environment.get(name, "")
        if text and getattr(processes, field) is None:
            found[field] = text if field == "coordinator_address" else _number(text, name)
    return dataclasses.replace(processes, **found)


def _number(text: str, name: str) -> int:
    readable = re.fullmatch("[0-9]{1,10}", text) is not None and int(text) <= MOST
    check(readable, f"in the environment, {name} is {text!r}: not a number from 0 to {MOST}")
    return int(text)
