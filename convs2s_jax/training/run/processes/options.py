"""The flags by which the processes of a training find each other. `--help` imports them, so JAX is not needed here."""

import dataclasses

from convs2s_jax.core.config import check

MOST = 2**31 - 1
"""Largest number of processes that JAX accepts."""


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
                bool(colon) and _is_number(port, 65535) and int(port) > 0,
                f"--coordinator_address={self.coordinator_address}: use host:port, such as 10.0.0.1:1234",
            )
        for name in ("initialization_timeout", "heartbeat_timeout"):
            check(getattr(self, name) >= 1, f"--{name}={getattr(self, name)}: use 1 second or more")


def _is_number(text: str, most: int) -> bool:
    """Whether the text is a whole number from 0 to `most`, in ASCII digits."""
    return text.isascii() and text.isdigit() and len(text) <= len(str(most)) and int(text) <= most


def from_environment(processes: Processes, environment: dict[str, str]) -> Processes:
    """Fill in what the flags leave out from JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID."""
    address = processes.coordinator_address or environment.get("JAX_COORDINATOR_ADDRESS") or None

    def number(given: int | None, name: str) -> int | None:
        text = environment.get(name, "")
        check(
            given is not None or not text or _is_number(text, MOST),
            f"in the environment, {name} is {text!r}: not a number from 0 to {MOST}",
        )
        return int(text) if given is None and text else given

    return dataclasses.replace(
        processes,
        coordinator_address=address,
        num_processes=number(processes.num_processes, "JAX_NUM_PROCESSES"),
        process_id=number(processes.process_id, "JAX_PROCESS_ID"),
    )
