"""Several processes as one training: they work in turn or in shares, agree, and end together."""

import contextlib
import functools
import json
import os
import secrets
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn, TypeVar, cast

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from convs2s_jax.core.command_line import INTERRUPTED, NO_ROOM
from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError
from convs2s_jax.nn.types import Tree
from convs2s_jax.training import sharding

T = TypeVar("T")

LOST = 75
"""Exit status where another process was lost (EX_TEMPFAIL): the same command continues the run."""
PATIENCE = 24 * 3600
"""Seconds to wait for the others where one has long work to do. A process that dies ends the waiting much earlier."""
LINGER = 10
"""Seconds that who leaves by an error waits for others who come to the same end."""
SIGNS = ("unavailable", "aborted", "deadline_exceeded", "gloo", "nccl", "connection", "heartbeat", "barrier")
"""What errors say where another process was lost, whatever network noticed it."""


def several() -> bool:
    """Whether this training has more than one process."""
    return jax.process_count() > 1


def is_primary() -> bool:
    """Whether this is process 0, which alone writes text files and talks to the user."""
    return jax.process_index() == 0


def barrier(name: str, *, patience: int = PATIENCE) -> None:
    """Wait for all processes, however long one of them works: collectives of arrays are not that patient.

    Args:
      name: of this meeting; no two of a run have the same.
      patience: seconds.
    """
    if several():
        everyone = set(range(jax.process_count()))
        ocp.multihost.sync_global_processes(f"convs2s_jax: {name}", timeout=patience, processes=everyone)


def primary_first(name: str, work: Callable[[], T]) -> T:
    """Process 0 works first, then the others, who find its files. `name` is as in `barrier`.

    Raises:
      UserError: on all processes where it is raised on process 0.
    """
    done = primary_only(name, work)
    return cast(T, done) if is_primary() else work()


def primary_only(name: str, work: Callable[[], T]) -> T | None:
    """Process 0 works and the others wait; they get None. Errors are as in `primary_first`."""
    done, refused = None, None
    if is_primary():
        try:
            done = work()
        except UserError as error:
            refused = error
    barrier(name)
    if not from_primary(refused is None):
        raise refused or UserError("process 0 says why this training cannot go on")
    return done


def agree_on_folder(folder: Path) -> None:
    """Raise UserError on all processes where not all see the same folder."""
    if not several():
        return
    token = int(multihost_utils.broadcast_one_to_all(np.uint32(secrets.randbits(32))))
    path = folder / f".met-{token}"
    primary_only(f"{path.name} written", lambda: path.write_text(""))
    same = all_of(path.exists())
    if is_primary():
        path.unlink()
    check(same, f"--workdir={folder} is not one folder for all processes: it has to lie on a file system they share")


def agree(what: str, value: int) -> None:
    """Raise UserError on all processes where not all have the same value, in [0, 2^32)."""
    if several():
        values = multihost_utils.process_allgather(np.uint32(value))
        odd = [i for i, other in enumerate(values) if other != values[0]]
        check(not odd, f"process {odd[0] if odd else 0} has another {what} than process 0: give all the same")


def all_of(flag: bool) -> bool:
    """Whether it holds on all processes."""
    return bool(np.all(multihost_utils.process_allgather(np.array(flag)))) if several() else flag


def from_primary(flag: bool) -> bool:
    """What process 0 says."""
    return bool(multihost_utils.broadcast_one_to_all(np.array(flag))) if several() else flag


def local(mesh: Mesh, tree: Tree) -> Tree:
    """Arrays that lie over the whole mesh, whole on a device of this process: [...] -> [...]."""
    return jax.tree.map(lambda x: x.addressable_data(0), _whole_on(mesh)(tree))


@functools.cache
def _whole_on(mesh: Mesh) -> Callable[[Tree], Tree]:
    """Compiled once, however often it is used."""
    return jax.jit(lambda x: x, out_shardings=sharding.replicated(mesh))


def own_devices(mesh: Mesh) -> list[jax.Device] | None:
    """Those of a mesh that belong to this process; None where they are all that it has."""
    devices = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    return None if set(devices) == set(jax.local_devices()) else devices


def local_share(count: int) -> range:
    """The share of this process in `count` pieces of work: every n-th."""
    return range(jax.process_index(), count, jax.process_count())


def collect(lines: Sequence[str], count: int, *, name: str) -> list[str]:
    """All `count` lines, where each process gives those of its share (`local_share`). `name` is as in `barrier`."""
    if not several():
        return list(lines)
    barrier(name)
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
    """End this process. Others at work are not waited for: they notice, and end as well.

    Neither are threads, where the user wants the end at once: they save, or compile, and Python would wait for the one
    and may crash on the other.

    But other processes may be about to leave for the same reason: all meet then and part in order, since they find
    each other through process 0, whose sudden end would abort those who have not left yet.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    if jax.distributed.is_initialized() and status != 0:
        with contextlib.suppress(Exception):
            barrier(f"leaving with {status}", patience=LINGER)
            jax.distributed.shutdown()
    elif status != INTERRUPTED:
        sys.exit(status)
    os._exit(status)


def is_loss(error: BaseException) -> bool:
    """Whether an error means that another process was lost."""
    text = str(error).lower()
    return several() and isinstance(error, RuntimeError) and any(sign in text for sign in SIGNS)


def guarded(work: Callable[[], None]) -> None:
    """Run a training; where another process is lost, say so and end with status `LOST`."""
    try:
        work()
    except Exception as error:
        told = isinstance(error, UserError) or (isinstance(error, OSError) and error.errno in NO_ROOM)
        if told or not jax.distributed.is_initialized():
            raise
        if is_loss(error):
            first = str(error).strip().splitlines()[0][:200]
            sys.stderr.write(
                f"another process of this training was lost ({first}): run the same command again on all of them to "
                "continue from the last checkpoint\n"
            )
            sys.stderr.flush()
            os._exit(LOST)
        traceback.print_exc()
        leave(1)
