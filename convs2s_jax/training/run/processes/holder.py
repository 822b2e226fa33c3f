"""Who holds the lock of a workdir: host, process and time, and whether that process is still alive."""

import dataclasses
import json
import math
import os
import socket
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, Self

from convs2s_jax.core.errors import UserError

LOST = 75
"""Exit status if another process was lost, or has taken the lock (EX_TEMPFAIL): the command can be run again."""


LOOKS = 5
"""Number of checks per beat of a claim that a process waits for."""


@dataclasses.dataclass(frozen=True)
class Holder:
    """A process that holds a lock.

    Attributes:
      host: name of its machine.
      process: its process id.
      since: time at which it took the lock, with the offset from UTC.
      machine: the boot and the namespaces in which the process id is valid; "" if they are unknown.
      started: start time of the process in the clock ticks of its machine; "" if it is unknown.
    """

    host: str
    process: int
    since: str
    machine: str
    started: str

    def __str__(self) -> str:
        return f"process {self.process} on {self.host}, since {self.since},"

    def to_bytes(self) -> bytes:
        """Return the holder as one line of JSON."""
        return json.dumps(dataclasses.asdict(self)).encode() + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes) -> Self | None:
        """The inverse of `to_bytes`; None if the content is not that of a holder."""
        try:
            values: dict[str, Any] = json.loads(content)
            texts = {name: str(values[name]) for name in ("host", "since", "machine", "started")}
            return cls(process=int(values["process"]), **texts)
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    @property
    def is_alive(self) -> bool | None:
        """Whether the process is alive; None if this one cannot know: on another machine or in another container."""
        if not (self.machine and self.started) or self.machine != _machine():
            return None
        return _started(self.process) == self.started


def looks(silence: float, beat: float) -> Iterator[None]:
    """Yield when it is time to look for a sign of life, for `silence` seconds, `LOOKS` times per `beat` seconds.

    Looks are counted: a process that was itself stopped in between looks no less often.
    """
    count = math.ceil(LOOKS * max(silence / beat, 1))
    for _ in range(count):
        time.sleep(silence / count)
        yield


def in_use(workdir: Path | str, holder: Holder | None) -> UserError:
    """Return the error for a workdir whose lock another process holds."""
    who = "another process" if holder is None else str(holder)
    return UserError(
        f"--workdir={workdir} is in use: {who} is training there; stop it, wait until it ends, or use another workdir"
    )


def end_lost(workdir: Path | str, holder: Holder | None, silence: float) -> NoReturn:
    """End this process, which was silent for more than `silence` seconds, so that another one has taken its place."""
    sys.stderr.write(
        f"--workdir={workdir}: this process was silent for more than {silence:.0f} s, and "
        f"{holder or 'another process'} has taken its place; this process exits\n"
    )
    sys.stderr.flush()
    os._exit(LOST)


def this_process() -> Holder:
    """The calling process as a holder from now on."""
    since = datetime.now().astimezone().isoformat(" ", "seconds")
    process = os.getpid()
    return Holder(socket.gethostname(), process, since, _machine(), _started(process) or "")


def _machine() -> str:
    """This boot of this machine, and the namespaces of process ids and of clocks; "" if one cannot be read."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return " ".join([boot, *(os.readlink(f"/proc/self/ns/{kind}") for kind in ("pid", "time"))])
    except OSError:
        return ""


def _started(process: int) -> str | None:
    """Start time of a process of this machine in clock ticks; None if it has ended."""
    try:
        line = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    fields = line.rpartition(")")[2].split()  # after the name of the program, which may contain anything
    return None if fields[0] in "ZX" else fields[19]
