"""A lock for file systems without flock: numbered claims with a heartbeat (decision 0015).

Claims are the files lock-1, lock-2 and so on. The one with the highest number counts, and it is never removed, so no
number is used twice. Its holder writes heartbeats to it. It is over once it says so, once its process is known to have
ended, or, if nobody can know, once it has not changed for `SILENCE` seconds of the reader's own clock: clocks are not
compared. Then the next number can be claimed, and the file system lets only one process create it.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from convs2s_jax.training.run.processes.holder import Holder, end_lost, in_use, looks, this_process

BEAT = 5.0
"""Seconds between two beats of a holder."""
SILENCE = 60.0
"""Seconds without a beat after which a claim is over."""
OVER = b"over\n"
"""Content of a claim that was given back."""


class Claim(NamedTuple):
    """A claim as it was read.

    Attributes:
      number: its number, 0 for none.
      content: its holder, then a line with the count of its beats.
    """

    number: int
    content: bytes


@contextlib.contextmanager
def held(workdir: Path, name: str) -> Iterator[None]:
    """Hold the highest claim of a workdir. If another process takes it from this one, this process ends.

    Raises:
      UserError: another process holds it.
      OSError: a claim cannot be written.
    """
    path, descriptor = _acquire(workdir, name)
    stop = threading.Event()
    beats = threading.Thread(target=_beat, args=(workdir, name, path, descriptor, stop), daemon=True)
    beats.start()
    try:
        yield
    finally:
        stop.set()
        beats.join()
        with contextlib.suppress(OSError):  # then it is over once it has been silent
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, OVER, 0)
        os.close(descriptor)


def is_claimed(workdir: Path, name: str) -> bool:
    """Whether the highest claim was not given back."""
    return _newest(workdir, name).content != OVER


def _acquire(workdir: Path, name: str) -> tuple[Path, int]:
    """Create the next claim once the highest is over; its path and descriptor."""
    newest = _newest(workdir, name)
    holder = _holder(newest)
    alive = None if holder is None else holder.is_alive
    if alive:
        raise in_use(workdir, holder)
    if newest.content != OVER and alive is None:
        _watch(workdir, name, newest)
    path = workdir / f"{name}-{newest.number + 1}"
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileExistsError as error:
        raise in_use(workdir, _holder(_newest(workdir, name))) from error
    os.write(descriptor, this_process().to_bytes())
    now = _newest(workdir, name)
    if now.number != newest.number + 1:  # it was claimed, and given back or lost, since `newest` was read
        os.close(descriptor)
        path.unlink()
        raise in_use(workdir, _holder(now))
    for number in range(max(1, newest.number - 9), newest.number + 1):
        (workdir / f"{name}-{number}").unlink(missing_ok=True)
    return path, descriptor


def _newest(workdir: Path, name: str) -> Claim:
    """The claim with the highest number."""
    numbers = [path.name.removeprefix(f"{name}-") for path in workdir.glob(f"{name}-*")]
    number = max((int(text) for text in numbers if text.isascii() and text.isdigit()), default=0)
    try:
        return Claim(number, (workdir / f"{name}-{number}").read_bytes() if number else OVER)
    except FileNotFoundError:  # a newer one has replaced it meanwhile
        return _newest(workdir, name)


def _holder(claim: Claim) -> Holder | None:
    return Holder.from_bytes(claim.content.partition(b"\n")[0])


def _watch(workdir: Path, name: str, claim: Claim) -> None:
    """Wait until a claim has been silent for `SILENCE` seconds. Raises UserError at a sign of life."""
    sys.stderr.write(
        f"--workdir={workdir}: {_holder(claim) or 'another process'} claims it; waiting {SILENCE:.0f} s for a sign of "
        "life, since this file system has no flock\n"
    )
    for _ in looks(SILENCE, BEAT):
        now = _newest(workdir, name)
        if now.content == OVER:
            return
        if now != claim:
            raise in_use(workdir, _holder(now))


def _beat(workdir: Path, name: str, path: Path, descriptor: int, stop: threading.Event) -> None:
    """Write heartbeats to a claim until `stop`; end this process if another one has claimed the workdir."""
    number, first, count = int(path.name.rpartition("-")[2]), os.fstat(descriptor).st_size, 0
    while not stop.wait(BEAT):
        with contextlib.suppress(OSError):  # a failing file system does not end a run; others see the silence
            count += 1
            os.pwrite(descriptor, f"{count}\n".encode(), first)
            newest = _newest(workdir, name)
            if newest.number != number:
                end_lost(workdir, _holder(newest), SILENCE)
