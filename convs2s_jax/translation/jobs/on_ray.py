"""Decode the parts of an output on a cluster of Ray, which places the processes, and replaces those that end."""

import contextlib
import sys
from typing import Any

from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.data.processes import imported_ray
from convs2s_jax.translation.jobs import decoding, parts
from convs2s_jax.translation.jobs.options import Options


class Worker:
    """A process with a loaded model that decodes parts. It returns mistakes of the user, which Ray would make long."""

    def __init__(self, options: Options) -> None:
        self._options, self._stack = options, contextlib.ExitStack()  # until the process ends
        self._opened: Any = None

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Decode the parts whose numbers are "id"."""
        error = ""
        try:
            self._opened = self._opened or self._stack.enter_context(decoding.opened(self._options, _tell))
            job, local, tell = self._opened
            parts.decode_parts(job, local, tell, [int(number) for number in batch["id"]])
        except UserError as found:
            error = str(found)
        return {**batch, "error": [error] * len(batch["id"])}


def _tell(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")  # the log of the process


def decode(options: Options, *, tell: Tell) -> None:
    """Decode parts until each is complete or held by a process that is not Ray's.

    Args:
      options: see `Options`. Paths are the same on all machines.
      tell: receives what was done.

    Raises:
      UserError: the input is invalid, or Ray is not installed.
    """
    ray = imported_ray()
    ray.init(ignore_reinit_error=True)  # RAY_ADDRESS names a cluster; by default, one on this machine
    gpus = ray.cluster_resources().get("GPU", 0)
    most = int(min(options.parts, gpus or ray.cluster_resources()["CPU"]))
    given = {"fn_constructor_args": (options,), "batch_size": 1, "concurrency": (1, most), "num_gpus": min(gpus, 1)}
    numbers = ray.data.range(options.parts, override_num_blocks=options.parts)
    errors = [row["error"] for row in numbers.map_batches(Worker, **given).take_all() if row["error"]]
    if errors:
        raise UserError(errors[0])
    parts.report(options.output, options.parts, tell)
