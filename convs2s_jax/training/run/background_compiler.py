"""The programs of a run: its update and its loss. Threads compile gradients before they are needed.

They compile those of an epoch's batches (`training.compile_ahead`). The optimiser's part is not compiled ahead: the
first update needs it right after its gradient, whose compilation takes most of the time.
"""

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Self

import jax
import numpy as np
from jax.sharding import Mesh
from jax.stages import Lowered

from convs2s_jax.core.rows import round_up
from convs2s_jax.data.shapes import Shape
from convs2s_jax.nn.types import Key, Tree
from convs2s_jax.training import flops
from convs2s_jax.training.mesh import row_shards
from convs2s_jax.training.run.processes import distributed
from convs2s_jax.training.run.programs import (
    ProgramKey,
    abstract_batch,
    abstract_key,
    compile_run,
    evaluator,
    placed,
    placed_state,
    state_program,
)
from convs2s_jax.training.step import Batch, LossSums, StepSums, TrainState, update


class Programs:
    """The programs of a run; as a context manager, since compilations have to end.

    Threads trace one after another: tracing is Python, where only one thread runs at a time, and contention makes it
    slower. So the first requested shape is compiled while the second is traced. Errors are ignored: whoever needs the
    program encounters them again, and may have the memory that was missing while other work ran.

    Attributes:
      mesh: the devices.
      layout: shapes of the state, with the sharding that each array has between updates.
      step: the compiled update. With `parallel="pmap"` it cannot be compiled without its arguments, and is not.
    """

    def __init__(self, key: ProgramKey, mesh: Mesh, sizes: Mapping[str, int], threads: int | None) -> None:
        """Compile nothing yet.

        Args:
          key: what the programs depend on.
          mesh: the devices.
          sizes: entries of the vocabularies, "source" and "target".
          threads: that compile gradients; None for `default_threads`.
        """
        threads = default_threads(mesh) if threads is None else threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="compiler") if threads else None
        self._requested: dict[tuple[int, int, int], Future[None]] = {}
        self._flops: dict[tuple[int, int, int], float] = {}
        self._tracing, self._ended = threading.Lock(), False
        self._key, self.mesh, self._sizes = key, mesh, sizes
        self.step = compile_run(key, mesh)
        self.layout = placed_state(key, mesh, **sizes)
        self._evaluate = evaluator(key, mesh)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for running compilations, as Python may crash if it exits during one; not after a second signal."""
        self._ended = True
        if self._pool is not None:
            self._pool.shutdown(wait=kind is not KeyboardInterrupt, cancel_futures=True)

    def new_state(self, begin: Key | Tree) -> TrainState:
        """The state before the first update, from a random key or from the parameters of another run."""
        tuned = not isinstance(begin, jax.Array)
        return state_program(self._key, self.mesh, tuned, **self._sizes)(begin)

    def update(
        self, state: TrainState, batches: Sequence[Batch], rate: float, key: Key
    ) -> tuple[TrainState, StepSums[LossSums]]:
        """Do one update (`step.update`), once its gradients that a thread is compiling are ready."""
        for batch in batches:
            self._await(batch)
        return update(self.step, state, batches, np.float32(rate), key)

    def evaluate(self, params: Tree, batch: Batch) -> LossSums:
        """The loss of a batch, without dropout and smoothing, of merged kernels."""
        return self._evaluate(params, batch)

    def flops(self, batch: Batch) -> float:
        """Operations of the products in the gradient of a batch, over all devices.

        They are counted in its traced program (`training.flops`), with the forms of convolutions that it computes.
        Recomputation (`model.execution.remat`) is not counted.
        """
        shape = _shape(batch)
        if shape not in self._flops:
            found = flops.count(self.step.first, self.layout.params, batch, abstract_key())
            self._flops[shape] = float(found.model)
        return self._flops[shape]

    def request_updates(self, shapes: Iterable[Shape]) -> None:
        """Request the gradients of training batches of these shapes, in order."""
        if self._pool is None or not hasattr(self.step.first, "lower"):
            return
        for shape in shapes:
            batch = abstract_batch(
                self.mesh, rows=round_up(shape.rows, row_shards(self.mesh)), src=shape.src, tgt=shape.tgt
            )
            if _shape(batch) not in self._requested:
                self._requested[_shape(batch)] = self._pool.submit(self._compile_gradient, batch)

    def _await(self, batch: Batch) -> None:
        """Wait if a thread is compiling the program of this batch. If none has begun, none will: the caller does it."""
        future = self._requested.get(_shape(batch))
        if future is not None and not future.cancel():
            wait([future])

    def _compile_gradient(self, batch: Batch) -> None:
        step: Any = self.step
        given = self.layout.params, batch, abstract_key()
        where = self._compile(step.first.lower, *given).output_shardings
        if self._key.accumulates:
            self._compile(step.add.lower, placed(jax.eval_shape(step.first, *given), where), *given)

    def _compile(self, lower: Callable[..., Lowered], *args: Any) -> Any:
        with self._tracing:
            if self._ended:
                raise InterruptedError("no program is needed any more")
            lowered = lower(*args)
        return lowered.compile()


def _shape(batch: Batch) -> tuple[int, int, int]:
    """Rows, and length of the sources and the targets."""
    rows, src = batch.src.shape
    return rows, src, batch.tgt.shape[1]


def default_threads(mesh: Mesh) -> int:
    """Return half of the cores, 2 to 8, on accelerators, whose hosts are otherwise idle; 0 on CPUs, used by updates.

    GPUs of several processes exchange measurements while they compile, so all must compile in the same order: 0 too.
    """
    platform = mesh.devices.flat[0].platform
    if platform == "cpu" or (platform != "tpu" and distributed.is_multi_process()):
        return 0
    return min(8, max(2, (os.cpu_count() or 1) // 2))
