"""Work in parts that several processes of this machine share."""

import multiprocessing
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, Protocol

from convs2s_jax.core.errors import UserError


class Parts(Protocol):
    """Work in parts, which other processes receive by pickle."""

    def __len__(self) -> int: ...

    def write(self, i: int, progress: Callable[[int], Any], /) -> None:
        """Do part i; `progress` gets the amounts that were done."""


def share(work: Parts, workers: int, progress: Callable[[int], Any]) -> None:
    """Do all parts, in new processes if there is more than one worker. These end with this process, however it ends.

    Raises:
      UserError: a worker was killed.
      BaseException: the first error of a worker, after the others were ended.
    """
    if workers < 2:
        for i in range(len(work)):
            work.write(i, progress)
        return
    context = multiprocessing.get_context("spawn")
    taken, done = context.Value("q", 0), context.Value("q", 0)
    pairs = [context.Pipe(duplex=False) for _ in range(workers)]
    running = [context.Process(target=_work, args=(work, taken, done, end), daemon=True) for _, end in pairs]
    told = 0
    try:
        for process in running:
            process.start()
        alive = True
        while alive:
            time.sleep(0.1)
            alive = any(process.is_alive() for process in running)  # before the rest, which may come with their end
            told, before = done.value, told
            progress(told - before)
            for process, (errors, _) in zip(running, pairs, strict=True):
                if errors.poll():
                    raise errors.recv()
                if process.exitcode:
                    raise UserError(
                        f"a process that tokenises text was ended (status {process.exitcode}), perhaps because memory "
                        "ran out: run the same command again with a smaller data.workers; finished ranges are kept"
                    )
    finally:
        for process in running:
            process.terminate()


def _work(work: Parts, taken: Any, done: Any, errors: Connection) -> None:
    """Take parts until there are none. `taken` and `done` are shared counters of parts and of what was done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    parent = multiprocessing.parent_process()

    def progress(amount: int) -> None:
        if parent is not None and not parent.is_alive():
            raise SystemExit(1)
        with done.get_lock():
            done.value += amount

    try:
        while True:
            with taken.get_lock():
                i, taken.value = taken.value, taken.value + 1
            if i >= len(work):
                return
            work.write(i, progress)
    except Exception as error:
        errors.send(error)
