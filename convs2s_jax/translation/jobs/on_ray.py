"""Decode the parts of an output on a cluster of Ray, which places the processes, and replaces those that end."""

import contextlib
import sys
from typing import Any

from convs2s_jax.core.errors import Tell, UserError
from convs2s_jax.translation.jobs import decoding, parts
from convs2s_jax.translation.jobs.options import Options


def _tell(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")  # the log of the process


class Worker:
    """A process with a loaded model that decodes parts."""

    def __init__(self, options: Options) -> None:
        """Load the model."""
        self._stack = contextlib.ExitStack()  # until the process ends
        self._opened = self._stack.enter_context(decoding.opened(options, _tell))

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Decode the parts whose numbers are "id"."""
        parts.decode_parts(*self._opened, [int(number) for number in batch["id"]])
        return batch


def decode(options: Options, *, tell: Tell) -> None:
    """Decode parts until each is complete or held by a process that is not Ray's.

    Args:
      options: see `Options`. Paths are the same on all machines.
      tell: receives what was done.

    Raises:
      UserError: the input is invalid, or Ray is not installed.
    """
    try:
        import ray.data
    except ImportError as error:
        raise UserError("--engine=ray needs Ray: pip install '.[ray]'") from error
    if not ray.is_initialized():
        ray.init()  # RAY_ADDRESS names the cluster; by default, this machine
    gpus = ray.cluster_resources().get("GPU", 0)
    most = int(min(options.parts, gpus or ray.cluster_resources()["CPU"]))
    given = {"fn_constructor_args": (options,), "batch_size": 1, "concurrency": (1, most), "num_gpus": min(gpus, 1)}
    try:
        ray.data.range(options.parts, override_num_blocks=options.parts).map_batches(Worker, **given).materialize()
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None and type(cause) is not UserError:
            cause = cause.__cause__ or getattr(cause, "cause", None)
        raise (cause or error) from None
    parts.report(options.output, options.parts, tell)
