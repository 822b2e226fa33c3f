"""The programs of a run: its update and its loss, compiled before they are needed (`training.compile_ahead`).

Threads compile the gradients of an epoch's batches, then the loss of the validation set's, then the searches of
validations and of the test. The optimiser's part is not compiled ahead: the first update needs it right after its
gradient, whose compilation takes most of the time.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Literal, Self

import jax
import numpy as np
from jax.sharding import Mesh
from jax.stages import Lowered

from convs2s_jax.core.rows import round_up
from convs2s_jax.data.shapes import Shape
from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.types import Key, Tree
from convs2s_jax.training import flops
from convs2s_jax.training.mesh import row_shards
from convs2s_jax.training.run.inputs import Split, planned
from convs2s_jax.training.run.prepare import Run
from convs2s_jax.training.run.processes import distributed
from convs2s_jax.training.run.programs import (
    ProgramKey,
    abstract_batch,
    abstract_key,
    begin_program,
    compile_run,
    evaluator,
    merged_kernels,
    placed,
    placed_state,
    state_program,
)
from convs2s_jax.training.run.tasks.task_table import task_of
from convs2s_jax.training.step import Batch, LossSums, StepSums, TrainState, update

Kind = Literal["gradients", "loss", "prediction"]
Check = Callable[[], object]
"""Called at least once a second while something is awaited; raises an error to stop waiting."""


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

    def __init__(self, run: Run, key: ProgramKey, mesh: Mesh) -> None:
        """Compile nothing yet.

        Args:
          run: configuration, data and vocabularies.
          key: what the programs depend on.
          mesh: the devices.
        """
        given = run.cfg.training.compile_ahead
        threads = default_threads(mesh) if given is None else given
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="compiler") if threads else None
        self._requested: dict[tuple[Kind, tuple[int, ...]], Future[Any]] = {}
        self._predictions: dict[int, list[Future[Any]]] = {}
        self._flops: dict[tuple[int, ...], float] = {}
        self._tracing, self._ended = threading.Lock(), False
        self._run, self._key, self.mesh = run, key, mesh
        self.step = compile_run(key, mesh)
        self.layout = placed_state(key, mesh, **run.sizes)
        self._evaluate: Any = evaluator(key.model, mesh, key.rules, key.parallel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for running compilations, as Python may crash if it exits during one; not after a second signal."""
        self._ended = True
        if self._pool is not None:
            self._pool.shutdown(wait=kind is not KeyboardInterrupt, cancel_futures=True)

    def new_state(self, begin: Key | Tree) -> TrainState:
        """The state before the first update, from a random key or from the parameters of another run."""
        program = state_program if isinstance(begin, jax.Array) else begin_program
        return program(self._key, self.mesh, **self._run.sizes)(begin)

    def update(
        self, state: TrainState, batches: Sequence[Batch], rate: float, key: Key
    ) -> tuple[TrainState, StepSums[LossSums]]:
        """Do one update (`step.update`)."""
        for batch in batches:
            self._await("gradients", batch, lambda: None)
        return update(self.step, state, batches, np.float32(rate), key)

    def evaluate(self, params: Tree, batch: Batch, check: Check = lambda: None) -> LossSums:
        """The loss of a batch, without dropout and smoothing, of merged kernels."""
        self._await("loss", batch, check)
        sums: LossSums = self._evaluate(params, batch)
        return sums

    def flops(self, batch: Batch) -> float:
        """Operations of the products in the gradient of a batch, over all devices.

        They are counted in its traced program (`training.flops`), with the forms of convolutions that it computes.
        Recomputation (`model.execution.remat`) is not counted.
        """
        shape = batch.src.shape + batch.tgt.shape
        if shape not in self._flops:
            found = flops.count(self.step.first, self.layout.params, batch, abstract_key())
            self._flops[shape] = float(found.model)
        return self._flops[shape]

    def request_updates(self, shapes: Iterable[Shape]) -> None:
        """Request the gradients of training batches of these shapes, in order, then the loss of validations."""
        if self._pool is None:
            return
        for shape in shapes:
            self._request("gradients", self._rows(shape), self._compile_gradient)
        if (valid := self._run.valid) is not None:
            for shape in planned(self._run.cfg.model, valid, self._run.held_out_shapes).first_uses():
                self._request("loss", self._rows(shape), self._compile_loss)

    def request_predictions(self, split: Split | None) -> None:
        """Request the programs that predict outputs of the validation set or the test set, unless none is needed."""
        cfg = self._run.cfg
        if self._pool is None or split is None or not cfg.training.validate_bleu or id(split) in self._predictions:
            return
        found: dict[tuple[int, ...], Callable[[], Lowered]] = {}
        with contextlib.suppress(Exception):  # the prediction encounters it again
            merged = jax.eval_shape(weight_norm.merge, self.layout.params)
            found = task_of(cfg.model).programs(merged, cfg.model, cfg, self.mesh, split)
        futures = [self._request("prediction", shape, self._compile, lower) for shape, lower in found.items()]
        self._predictions[id(split)] = futures

    def await_predictions(self, split: Split, check: Check) -> bool:
        """Wait until the programs that predict outputs of a split are compiled. Return whether there are threads."""
        self.request_predictions(split)
        _wait(self._predictions.get(id(split), []), check)
        return self._pool is not None

    def _await(self, kind: Kind, batch: Batch, check: Check) -> None:
        """Wait if a thread is compiling the program of this batch. If none has begun, none will: the caller does it."""
        future = self._requested.get((kind, batch.src.shape + batch.tgt.shape))
        if future is not None and not future.cancel():
            _wait([future], check)

    def _request(self, kind: Kind, shape: tuple[int, ...], work: Callable[..., Any], *given: Any) -> "Future[Any]":
        assert self._pool is not None
        if (kind, shape) not in self._requested:
            self._requested[kind, shape] = self._pool.submit(work, *(given or (shape,)))
        return self._requested[kind, shape]

    def _rows(self, shape: Shape) -> tuple[int, ...]:
        """Rows and length of the sources, rows and length of the targets."""
        rows = round_up(shape.rows, row_shards(self.mesh))
        return rows, shape.src, rows, shape.tgt

    def _compile_loss(self, shape: tuple[int, ...]) -> None:
        merge: Any = merged_kernels
        where = self._compile(merge.lower, self.layout.params).output_shardings
        self._compile(
            self._evaluate.lower, placed(jax.eval_shape(merge, self.layout.params), where), self._batch(shape)
        )

    def _compile_gradient(self, shape: tuple[int, ...]) -> None:
        step: Any = self.step
        given = self.layout.params, self._batch(shape), abstract_key()
        if hasattr(step.first, "lower"):
            where = self._compile(step.first.lower, *given).output_shardings
            if self._run.cfg.data.batch.accumulate > 1:
                self._compile(step.add.lower, placed(jax.eval_shape(step.first, *given), where), *given)

    def _batch(self, shape: tuple[int, ...]) -> Batch:
        return abstract_batch(self.mesh, rows=shape[0], src=shape[1], tgt=shape[3])

    def _compile(self, lower: Callable[..., Lowered], *args: Any) -> Any:
        with self._tracing:
            if self._ended:
                raise InterruptedError("no program is needed any more")
            lowered = lower(*args)
        return lowered.compile()


def _wait(futures: list["Future[Any]"], check: Check) -> None:
    check()
    while wait(futures, timeout=1.0).not_done:
        check()


def default_threads(mesh: Mesh) -> int:
    """Return half of the cores, 2 to 8, on accelerators, whose hosts are otherwise idle; 0 on CPUs, used by updates.

    GPUs of several processes exchange measurements while they compile, so all must compile in the same order: 0 too.
    """
    platform = mesh.devices.flat[0].platform
    if platform == "cpu" or (platform != "tpu" and distributed.is_multi_process()):
        return 0
    return min(8, max(2, (os.cpu_count() or 1) // 2))
