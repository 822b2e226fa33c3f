"""Work in parts that several processes of this machine share."""

import functools
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from convs2s_jax.core.errors import UserError, first_line

Progress = Callable[[int], Any]


class Parts(NamedTuple):
    """Work in parts, which other processes receive by pickle.

    Attributes:
      sizes: amount of work of each part, by its key.
      task: key -> the work of a part, which can be pickled; its argument gets the amounts done. None if it is done.
      save: keeps what the work of a part returned: (key, result).
    """

    sizes: Mapping[Any, int]
    task: Callable[[Any], Callable[[Progress], Any] | None]
    save: Callable[[Any, Any], Any]


Share = Callable[[Parts, Progress], None]
"""Does all parts, in this process or in others, while the second argument gets the amounts that were done."""


def local(workers: int) -> Share:
    """Return `share` with this number of workers; 0: one for each core. With one, this process does all parts."""
    return functools.partial(share, workers=workers or os.cpu_count() or 1)


def share(work: Parts, progress: Progress, *, workers: int = 1) -> None:
    """Do all parts in new processes, if there is more than one worker. These end with this process, however it ends.

    Raises:
      UserError: a worker was killed.
      BaseException: the first error of a worker, after the others were ended.
    """
    workers = min(workers, len(work.sizes))
    if workers < 2:
        for key in work.sizes:
            _do(work, key, progress)
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


def on_cluster(work: Parts, progress: Progress) -> None:
    """Do all parts as tasks of a Ray cluster: that of RAY_ADDRESS, or one on this machine.

    Ray places tasks, and repeats those whose machine is lost. This process sends each its part and keeps its result.

    Raises:
      UserError: Ray is not installed, cannot be reached, or a task failed.
    """
    ray = imported_ray()
    try:
        ray.init(ignore_reinit_error=True, log_to_driver=False, logging_level="ERROR")
        do, waiting = ray.remote(lambda task: task(lambda _: None)), dict[Any, Any]()

        def collect(most: int) -> None:
            while len(waiting) > most:
                (done,), _ = ray.wait([*waiting])
                work.save(waiting[done], ray.get(done))
                progress(work.sizes[waiting.pop(done)])

        for key, size in work.sizes.items():
            if (task := work.task(key)) is None:
                progress(size)
            else:
                waiting[do.remote(task)] = key
                collect(2 * int(ray.cluster_resources()["CPU"]))  # a part's text is sent only when its turn is near
        collect(0)
    except (ConnectionError, ray.exceptions.RayError) as error:
        raise UserError(
            f"--engine=ray: {first_line(error)}; finished ranges are kept: run the same command again"
        ) from error
    finally:
        ray.shutdown()


def imported_ray() -> Any:
    """Return the library Ray with its data sets. Raises UserError if it is not installed."""
    try:
        import ray.data
    except ImportError as error:
        raise UserError("--engine=ray needs Ray: pip install '.[ray]'") from error
    return ray


def _do(work: Parts, key: Any, progress: Progress) -> None:
    if (task := work.task(key)) is None:
        progress(work.sizes[key])
    else:
        work.save(key, task(progress))


def _work(work: Parts, taken: Any, done: Any, errors: Connection) -> None:
    """Take parts until there are none. `taken` and `done` are shared counters of parts and of what was done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    parent = multiprocessing.parent_process()

    def progress(amount: int) -> None:
        if parent is not None and not parent.is_alive():
            raise SystemExit(1)
        with done.get_lock():
            done.value += amount

    keys = [*work.sizes]
    try:
        while True:
            with taken.get_lock():
                i, taken.value = taken.value, taken.value + 1
            if i >= len(keys):
                return
            _do(work, keys[i], progress)
    except Exception as error:
        errors.send(error)
