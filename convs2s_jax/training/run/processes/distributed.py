"""Coordination of several processes: barriers, shared decisions, division of work, and a common end."""

import contextlib
import json
import os
import secrets
import sys
import traceback
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jax.sharding import Mesh

from convs2s_jax.core.config import check, differences
from convs2s_jax.core.errors import UserError, first_line
from convs2s_jax.core.guard import INTERRUPTED, LOST, user_message
from convs2s_jax.nn.types import Tree
from convs2s_jax.training import dispatch, sharding
from convs2s_jax.training.run.compilations import shared

T = TypeVar("T")

PATIENCE = 24 * 3600
"""Seconds to wait at a barrier while one process has long work to do. If a process dies, the wait ends much earlier."""
ROUND = 512
"""Number of lines that a process translates before it asks whether a signal arrived at another one: eight batches."""
LINGER = 10
"""Grace period before a failing process exits, in seconds: others may be failing for the same reason."""
SIGNS = ("unavailable", "aborted", "deadline_exceeded", "gloo", "nccl", "connection", "heartbeat", "barrier")
"""Words in the error messages of all network layers that indicate the loss of another process."""


def is_multi_process() -> bool:
    """Whether this training has more than one process."""
    return jax.process_count() > 1


def is_primary() -> bool:
    """Whether this is process 0, the only one that writes text files and prints messages."""
    return jax.process_index() == 0


def barrier(name: str, *, patience: int = PATIENCE) -> None:
    """Wait until all processes are here. Unlike collectives of arrays, this may take hours.

    Args:
      name: unique within a run.
      patience: timeout in seconds.
    """
    if is_multi_process():
        everyone = set(range(jax.process_count()))
        ocp.multihost.sync_global_processes(f"convs2s_jax: {name}", timeout=patience, processes=everyone)


def on_all(name: str, work: Callable[[], T], *, at_once: bool) -> T:
    """Run `work` on all processes, at once or on process 0 before the others, which find its files.

    Raises:
      UserError: on all processes, if one of those that began raises it. `name` is as in `barrier`.
    """
    done = _on_some(name, work, here=at_once or is_primary())
    return cast(T, done) if at_once or is_primary() else work()


def primary_only(name: str, work: Callable[[], T]) -> T | None:
    """Run `work` on process 0 while the others wait; they get None. Errors are as in `on_all`."""
    return _on_some(name, work, here=is_primary())


def _on_some(name: str, work: Callable[[], T], *, here: bool) -> T | None:
    done, refused = None, None
    try:
        done = work() if here else None
    except UserError as error:
        refused = error
    barrier(name)
    if not true_on_all(refused is None):
        raise refused or UserError("this command cannot continue; another process reports why")
    return done


def agree_on_folder(folder: Path) -> None:
    """Raise UserError on all processes unless all see the same folder."""
    if not is_multi_process():
        return
    token = int(multihost_utils.broadcast_one_to_all(np.uint32(secrets.randbits(32))))
    own = folder / f".met-{token}-{jax.process_index()}"
    try:
        with contextlib.suppress(OSError):
            own.touch()
        barrier(f"met {token}")
        found = len([*folder.glob(f".met-{token}-*")])
        barrier(f"seen {token}")
    finally:
        own.unlink(missing_ok=True)
    same = true_on_all(found == jax.process_count())
    check(same, f"--workdir={folder} is not the same folder for all processes: it must be on a file system they share")


def agree(what: str, value: Any, *, remedy: str = "all must be the same") -> None:
    """Raise UserError on all processes, with the remedy, unless all have the same JSON value.

    Of records, the message names the fields that differ.
    """
    if not is_multi_process():
        return
    text = json.dumps(value, sort_keys=True)
    sums = multihost_utils.process_allgather(np.uint32(zlib.crc32(text.encode())))
    if odd := [i for i, other in enumerate(sums) if other != sums[0]]:
        values = [json.loads(one) for one in collect([text], len(sums), name=f"different {what}")]
        named = differences(values[0], values[odd[0]], places=("on process 0", f"on process {odd[0]}"))
        fields = f" ({named})" if isinstance(value, dict) else ""
        raise UserError(f"process {odd[0]} has a different {what} from process 0{fields}: {remedy}")


def true_on_all(flag: bool) -> bool:
    """Whether the flag is True on all processes."""
    return bool(np.all(multihost_utils.process_allgather(np.array(flag)))) if is_multi_process() else flag


def from_primary(flag: bool) -> bool:
    """The flag of process 0."""
    return bool(multihost_utils.broadcast_one_to_all(np.array(flag))) if is_multi_process() else flag


def local(mesh: Mesh, tree: Tree) -> Tree:
    """Gather arrays that are sharded over the whole mesh onto one device of this process: [...] -> [...]."""
    return jax.tree.map(lambda x: x.addressable_data(0), _whole_on(mesh)(tree))


@shared
def _whole_on(mesh: Mesh) -> Callable[[Tree], Tree]:
    """A function that gathers a tree on every device, compiled once per mesh."""
    return dispatch.jit(lambda x: x, out_shardings=sharding.replicated(mesh))


def own_devices(mesh: Mesh) -> list[jax.Device] | None:
    """The devices of a mesh that belong to this process; None if these are all devices of the process."""
    devices = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    return None if set(devices) == set(jax.local_devices()) else devices


def local_rounds(count: int) -> list[range]:
    """Split this process's share of `count` lines, every n-th of n processes, into pieces of at most `ROUND`.

    All processes get equally many pieces, and a single process gets one. Between two pieces, processes can ask whether
    a signal arrived.
    """
    share, largest = range(jax.process_index(), count, jax.process_count()), -(-count // jax.process_count())
    size = ROUND if is_multi_process() else max(count, 1)
    return [share[begin : begin + size] for begin in range(0, largest, size)]


def collect(lines: Sequence[str], count: int, *, name: str) -> list[str]:
    """Gather all `count` lines, in order, of which each process has every n-th. `name` is as in `barrier`."""
    if not is_multi_process():
        return list(lines)
    barrier(name)
    text = np.frombuffer(json.dumps(list(lines)).encode(), np.uint8)
    sizes = multihost_utils.process_allgather(np.int32(len(text)))
    padded = np.zeros(max(sizes), np.uint8)
    padded[: len(text)] = text
    parts = multihost_utils.process_allgather(padded)
    found = [json.loads(bytes(part[:size])) for part, size in zip(parts, sizes, strict=True)]
    return [found[i % len(found)][i // len(found)] for i in range(count)]


def leave(status: int) -> NoReturn:
    """End this process, without waiting for processes that are still working: they notice, and end as well.

    If other processes fail for the same reason, all first meet at a barrier and disconnect in order. They are connected
    through process 0, and if that ended first, it would abort the others.

    After an interrupt, threads that save or compile are not awaited either: Python would wait for a save to finish, and
    may crash during a compilation.
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
    return is_multi_process() and isinstance(error, RuntimeError) and any(sign in text for sign in SIGNS)


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Context manager: if another process is lost inside, report it and exit with status `LOST`."""
    try:
        yield
    except Exception as error:
        if user_message(error) is not None or not jax.distributed.is_initialized():
            raise
        if is_loss(error):
            sys.stderr.write(
                f"another process of this command was lost ({first_line(error)}): run the same command again on all of "
                "them; a training continues from its last checkpoint\n"
            )
            sys.stderr.flush()
            os._exit(LOST)
        traceback.print_exc()
        leave(1)
