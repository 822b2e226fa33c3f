"""Reading checkpoints while a training replaces them: what is removed while it is read is not damaged."""

import os
import time
from pathlib import Path

from convs2s_jax.training.run.locks.lock import may_be_locked

SETTLED = 1.0
"""Seconds for which a checkpoint that could not be read must stay unchanged to count as damaged."""
LOOKS = 20
"""How often it is checked in these seconds. Checks are counted, so that a process that is stopped misses only one."""
LISTINGS = 200
"""How often the folder is listed before reading fails."""

Entries = dict[str, tuple[int, int]]
"""The folders and files of a checkpoint: path -> (size, time of the last change)."""


class ReplacedError(Exception):
    """A checkpoint was removed or replaced while it was read."""


def entries(place: Path) -> Entries:
    """The folders and files of a checkpoint as they are now; none if it is gone."""
    found = {}
    for folder, _, names in os.walk(place):
        for path in (folder, *(os.path.join(folder, name) for name in names)):
            try:
                status = os.lstat(path)
            except OSError:
                continue  # removed just now
            found[path] = (status.st_size, status.st_mtime_ns)
    return found


def is_replaced(place: Path, before: Entries) -> bool:
    """Whether a checkpoint that could not be read has changed or is gone.

    If its workdir has a lock, it is watched for `SETTLED` seconds, since its removal may be in progress.
    """
    looks = LOOKS if may_be_locked(place.parents[1]) else 0
    while (now := entries(place)) == before and now and looks:
        looks -= 1
        time.sleep(SETTLED / LOOKS)
    return now != before or not now
