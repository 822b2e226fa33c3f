"""Background compilation of programs before they are needed (`training.compile_ahead`).

These are the gradients of an epoch's batches, then the loss of the validation set's, then the searches of validations
and of the test. The optimiser's part is not compiled ahead: the first update needs it right after its gradient, whose
compilation takes most of the time.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, Self

import jax
from jax.sharding import Mesh
from jax.stages import Lowered

from convs2s_jax.core.rows import round_up
from convs2s_jax.data.shapes import Shape
from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.types import Tree
from convs2s_jax.training.mesh import row_shards
from convs2s_jax.training.run.inputs import Split, planned
from convs2s_jax.training.run.prepare import Run
from convs2s_jax.training.run.processes import distributed
from convs2s_jax.training.run.programs import abstract_batch, abstract_key, merged_kernels, placed
from convs2s_jax.training.run.tasks.task_table import task_of
from convs2s_jax.training.step import Batch, LossSums, Step


class CompileRequest(NamedTuple):
    """A program to compile ahead.

    Attributes:
      kind: "gradients" of an update, "loss" of a batch of the validation set, or "prediction" of outputs.
      shape: of the batch; for a prediction as in `Task.programs`.
    """

    kind: Literal["gradients", "loss", "prediction"]
    shape: tuple[int, ...]


class BackgroundCompiler:
    """Context manager with threads that call `work(request)` once for each request, in their order."""

    def __init__(self, work: Callable[[CompileRequest], object], *, threads: int) -> None:
        """Start nothing before `request`.

        Args:
          work: its errors are ignored: whoever needs the result encounters them again, and may have the memory that was
            missing while other work ran.
          threads: maximum number at a time; with 0 nothing is done.
        """
        self._work, self._threads, self._free = work, threads, threads
        self._waiting: list[CompileRequest] = []
        self._running: set[CompileRequest] = set()
        self._seen: set[CompileRequest] = set()
        self._lock = threading.Condition()  # notified when something is done
        self.ended = threading.Event()

    def __enter__(self) -> Self:
        return self

    @property
    def enabled(self) -> bool:
        """Whether there are threads."""
        return self._threads > 0

    def request(self, wanted: Iterable[CompileRequest]) -> None:
        """Queue what was not requested before; do nothing without threads."""
        with self._lock:
            for one in wanted if self.enabled else ():
                if one not in self._seen:
                    self._seen.add(one)
                    self._waiting.append(one)
            while self._free and self._waiting:
                self._free -= 1
                threading.Thread(target=self._go_on, name="compiler", args=(self._next(),), daemon=True).start()

    def wait_for(self, one: CompileRequest, check: Callable[[], object] = lambda: None) -> None:
        """Wait if a thread is working on this. If none has started, none will: the caller does the work.

        `check` is as in `finish`.
        """
        with self._lock:
            self._seen.add(one)
            if one in self._waiting:
                self._waiting.remove(one)
        self._wait_while(lambda: one in self._running, check)

    def finish(self, wanted: Sequence[CompileRequest], check: Callable[[], object]) -> None:
        """Wait until those of `wanted` that were requested are done. They move to the front of the queue.

        Args:
          wanted: in the order in which they are needed.
          check: called at least once a second; raises an error to stop waiting.
        """
        with self._lock:
            first = [one for one in wanted if one in self._waiting]
            self._waiting = first + [one for one in self._waiting if one not in first]
        self._wait_while(lambda: any(one in self._waiting or one in self._running for one in wanted), check)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for running compilations, as Python may crash if it exits during one; not after a second signal."""
        self.ended.set()
        with self._lock:
            self._waiting = []
        if kind is not KeyboardInterrupt:
            self._wait_while(lambda: bool(self._running), lambda: None)

    def _wait_while(self, busy: Callable[[], bool], check: Callable[[], object]) -> None:
        while True:
            check()
            with self._lock:
                if not busy():
                    return
                self._lock.wait(1.0)

    def _next(self) -> CompileRequest:
        one = self._waiting.pop(0)
        self._running.add(one)
        return one

    def _go_on(self, one: CompileRequest) -> None:
        while True:
            with contextlib.suppress(BaseException):
                self._work(one)
            with self._lock:
                self._running.remove(one)
                self._lock.notify_all()
                if not self._waiting:
                    self._free += 1
                    return
                one = self._next()


class ProgramsAhead(BackgroundCompiler):
    """The programs of a run, compiled as an update, a validation or a test would compile them.

    Threads trace one after another: tracing is Python, where only one thread runs at a time, and contention makes it
    slower. So the first requested shape is compiled while the second is traced.
    """

    def __init__(self, run: Run, mesh: Mesh, step: Step[Batch, LossSums], evaluate: Any, params: Tree) -> None:
        """Compile nothing yet.

        Args:
          run: configuration, data and vocabularies.
          mesh: the devices.
          step: the update. With `parallel="pmap"` it cannot be compiled without its arguments, and nothing is done.
          evaluate: as `programs.evaluator` returns it.
          params: shapes of the trained parameters, with the shardings of the state.
        """
        given = run.cfg.training.compile_ahead
        super().__init__(self._compile, threads=default_threads(mesh) if given is None else given)
        self._run, self._mesh, self._params = run, mesh, params
        self._gradients: Any = step
        self._evaluate = evaluate
        self._tracing = threading.Lock()
        self._predictions: dict[CompileRequest, Callable[[], Lowered]] = {}
        self._planned: dict[int, list[CompileRequest]] = {}

    def updates(self, shapes: Iterable[Shape]) -> None:
        """Request the gradients of training batches of these shapes, in order, then the loss of validations."""
        if not self.enabled:
            return
        self.request([CompileRequest("gradients", self._rows(shape)) for shape in shapes])
        run = self._run
        if run.valid is not None:
            batches = planned(run.cfg.model, run.valid, run.held_out_shapes)
            self.request([CompileRequest("loss", self._rows(shape)) for shape in batches.first_uses()])

    def predictions(self, split: Split | None) -> list[CompileRequest]:
        """Request the programs that predict outputs of the validation set or the test set, and return their names.

        The first call for a split plans its batches. Errors are ignored here, because the prediction encounters them
        again.
        """
        cfg = self._run.cfg
        if not self.enabled or split is None or not cfg.training.validate_bleu:
            return []
        if id(split) not in self._planned:
            programs = dict[tuple[int, ...], Callable[[], Lowered]]()
            merged = jax.eval_shape(weight_norm.merge, self._params)
            with contextlib.suppress(Exception):
                programs = task_of(cfg.model).programs(merged, cfg.model, cfg, self._mesh, split)
            found = {CompileRequest("prediction", shape): lower for shape, lower in programs.items()}
            self._predictions |= found
            self._planned[id(split)] = list(found)
        self.request(self._planned[id(split)])
        return self._planned[id(split)]

    def _rows(self, shape: Shape) -> tuple[int, ...]:
        """Rows and length of the sources, rows and length of the targets."""
        rows = round_up(shape.rows, row_shards(self._mesh))
        return rows, shape.src, rows, shape.tgt

    def _compile(self, request: CompileRequest) -> None:
        if request.kind == "prediction":
            self._compiled(self._lower, request)
            return
        params, first, key = self._params, self._gradients.first, abstract_key()
        rows, src, _, tgt = request.shape
        batch = abstract_batch(self._mesh, rows=rows, src=src, tgt=tgt)
        if request.kind == "loss":
            merge: Any = merged_kernels
            where = self._compiled(merge.lower, params).output_shardings
            self._compiled(self._evaluate.lower, placed(jax.eval_shape(merge, params), where), batch)
        elif hasattr(first, "lower"):
            where = self._compiled(first.lower, params, batch, key).output_shardings
            if self._run.cfg.data.batch.accumulate > 1:
                total = placed(jax.eval_shape(first, params, batch, key), where)
                self._compiled(self._gradients.add.lower, total, params, batch, key)

    def _lower(self, request: CompileRequest) -> Lowered:
        """Trace a program that predicts."""
        return self._predictions[request]()

    def _compiled(self, lower: Callable[..., Lowered], *args: Any) -> Any:
        with self._tracing:
            if self.ended.is_set():
                raise InterruptedError("no program is needed any more")
            lowered = lower(*args)
        return lowered.compile()


def default_threads(mesh: Mesh) -> int:
    """Return half of the cores, 2 to 8, on accelerators, whose hosts are otherwise idle; 0 on CPUs, used by updates.

    GPUs of several processes exchange measurements while they compile, so all must compile in the same order: 0 too.
    """
    platform = mesh.devices.flat[0].platform
    if platform == "cpu" or (platform != "tpu" and distributed.is_multi_process()):
        return 0
    return min(8, max(2, (os.cpu_count() or 1) // 2))
