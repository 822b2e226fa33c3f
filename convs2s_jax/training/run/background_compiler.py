"""Background compilation of programs before they are needed (`training.compile_ahead`).

These are the gradients of an epoch's batches, then the loss of the validation set's, then the searches of validations
and of the test. The optimiser's part is not compiled ahead: the first update needs it right after its gradient, whose
compilation takes most of the time.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import partial
from typing import Any, Generic, Literal, NamedTuple, TypeVar

import jax
from jax.sharding import Mesh
from jax.stages import Lowered

from convs2s_jax.core.rows import round_up
from convs2s_jax.data.shapes import Shape
from convs2s_jax.nn.types import Tree
from convs2s_jax.training.batch import Batch, LossSums
from convs2s_jax.training.mesh import row_shards
from convs2s_jax.training.run import validation
from convs2s_jax.training.run.inputs import Split
from convs2s_jax.training.run.prepare import Run
from convs2s_jax.training.run.processes import distributed
from convs2s_jax.training.run.processes.interrupts import EndedAtOnceError
from convs2s_jax.training.run.programs import abstract_batch, abstract_key, placed
from convs2s_jax.training.run.tasks.task_table import task_of
from convs2s_jax.training.step import Step

K = TypeVar("K", bound=Hashable)


class CompileRequest(NamedTuple):
    """A program to compile ahead.

    Attributes:
      kind: "gradients" of an update, "loss" of a batch of the validation set, or "prediction" of outputs.
      shape: of the batch; for a prediction as in `Task.programs`.
    """

    kind: Literal["gradients", "loss", "prediction"]
    shape: tuple[int, ...]


class BackgroundCompiler(Generic[K]):
    """Context manager with threads that call `work(name)` once for each requested name, in the order of requests.

    `finish` moves names to the front.
    """

    def __init__(self, work: Callable[[K], object], *, threads: int, ended: threading.Event | None = None) -> None:
        """Start nothing before `request`.

        Args:
          work: called once for each name. Its errors are ignored: whoever needs the result encounters them again, and
            may have the memory that was missing while other work ran.
          threads: maximum number at a time; with 0 nothing is done.
          ended: set at the end, so that work with several steps can stop early.
        """
        self._work, self._threads, self._free = work, threads, threads
        self._ended = ended or threading.Event()
        self._waiting: list[K] = []
        self._running: set[K] = set()
        self._seen: set[K] = set()
        self._lock = threading.Condition()  # notified when something is done

    def __enter__(self) -> "BackgroundCompiler[K]":
        return self

    @property
    def enabled(self) -> bool:
        """Whether there are threads."""
        return self._threads > 0

    def request(self, names: Iterable[K]) -> None:
        """Queue the names that were not requested before; do nothing without threads."""
        if not self.enabled:
            return
        with self._lock:
            for name in names:
                if name not in self._seen:
                    self._seen.add(name)
                    self._waiting.append(name)
            while self._free and len(self._waiting) > 0:
                self._free -= 1
                threading.Thread(target=self._run, name="compiler", args=(self._next(),), daemon=True).start()

    def wait_for(self, name: K, check: Callable[[], object] = lambda: None) -> None:
        """Wait if a thread is working on this name. If none has started, none will: the caller does the work.

        `check` is as in `finish`.
        """
        with self._lock:
            self._seen.add(name)
            if name in self._waiting:
                self._waiting.remove(name)
        self._wait_while(lambda: name in self._running, check)

    def finish(self, names: Sequence[K], check: Callable[[], object]) -> None:
        """Wait until those of `names` that were requested are done. They move to the front of the queue.

        Args:
          names: in the order in which they are needed.
          check: called at least once a second; raises an error to stop waiting.
        """
        with self._lock:
            first = [name for name in names if name in self._waiting]
            self._waiting = first + [name for name in self._waiting if name not in first]
        self._wait_while(lambda: any(name in self._waiting or name in self._running for name in names), check)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for running compilations, as Python may crash if it exits during one; not after a second signal."""
        self._ended.set()
        with self._lock:
            self._waiting = []
        if kind not in (KeyboardInterrupt, EndedAtOnceError):
            self._wait_while(lambda: bool(self._running), lambda: None)

    def _wait_while(self, busy: Callable[[], bool], check: Callable[[], object]) -> None:
        while True:
            check()
            with self._lock:
                if not busy():
                    return
                self._lock.wait(1.0)

    def _next(self) -> K:
        name = self._waiting.pop(0)
        self._running.add(name)
        return name

    def _run(self, name: K) -> None:
        while True:
            with contextlib.suppress(BaseException):
                self._work(name)
            with self._lock:
                self._running.remove(name)
                self._lock.notify_all()
                if not self._waiting:
                    self._free += 1
                    return
                name = self._next()


def default_threads(mesh: Mesh) -> int:
    """Return half of the cores, 2 to 8, on accelerators, whose hosts are otherwise idle; 0 on CPUs, used by updates.

    GPUs of several processes exchange measurements while they compile, so all must compile in the same order: 0 too.
    """
    platform = mesh.devices.flat[0].platform
    if platform == "cpu" or (platform != "tpu" and distributed.is_multi_process()):
        return 0
    return min(8, max(2, (os.cpu_count() or 1) // 2))


def compiler(
    step: Step[Batch, LossSums],
    evaluate: Any,
    params: Tree,
    mesh: Mesh,
    *,
    accumulate: bool,
    ended: threading.Event,
    predictions: "Predictions",
) -> Callable[[CompileRequest], object]:
    """Return a function that compiles a requested program, as an update, a validation or a test would.

    Threads trace one after another: tracing is Python, where only one thread runs at a time, and contention makes it
    slower. So the first requested shape is compiled while the second is traced.

    Args:
      step: the update. With `parallel="pmap"` it cannot be compiled without its arguments, and nothing is done.
      evaluate: as `validation.evaluator` returns it.
      params: shapes of the trained parameters, with the shardings of the state.
      mesh: the devices.
      accumulate: whether updates have several batches.
      ended: once it is set, nothing more is traced.
      predictions: the programs that predict outputs.
    """
    first: Any = step.first
    add: Any = step.add
    key, tracing = abstract_key(), threading.Lock()

    def compiled(lower: Callable[..., Lowered], *args: Any) -> Any:
        with tracing:
            if ended.is_set():
                raise InterruptedError("no program is needed any more")
            lowered = lower(*args)
        return lowered.compile()

    def compile_gradients(batch: Batch) -> None:
        if not hasattr(first, "lower"):
            return
        where = compiled(first.lower, params, batch, key).output_shardings
        if accumulate:
            compiled(add.lower, placed(jax.eval_shape(step.first, params, batch, key), where), params, batch, key)

    def compile_loss(batch: Batch) -> None:
        merge: Any = validation.merged
        where = compiled(merge.lower, params).output_shardings
        compiled(evaluate.lower, placed(jax.eval_shape(merge, params), where), batch)

    def compile_shape(request: CompileRequest) -> None:
        if request.kind == "prediction":
            compiled(partial(predictions.lower, request))
            return
        rows, src, _, tgt = request.shape
        batch = abstract_batch(mesh, rows=rows, src=src, tgt=tgt)
        (compile_gradients if request.kind == "gradients" else compile_loss)(batch)

    return compile_shape


def requests(run: Run, mesh: Mesh, shapes: Iterable[Shape]) -> list[CompileRequest]:
    """Return the requests for training batches of these shapes, in order, then those for the loss of validations."""
    found = [CompileRequest("gradients", _on(mesh, shape)) for shape in shapes]
    if run.valid is not None:
        held_out = validation.planned(run.cfg.model, run.valid, run.held_out_shapes)
        found += [CompileRequest("loss", _on(mesh, shape)) for shape in held_out.first_uses()]
    return found


class Predictions:
    """The programs that predict the outputs of validations and of the test."""

    def __init__(self, run: Run, params: Tree, mesh: Mesh) -> None:
        """Plan nothing yet.

        Args:
          run: configuration, data and vocabularies.
          params: shapes of the merged parameters.
          mesh: the devices.
        """
        self._run, self._params, self._mesh = run, params, mesh
        self._programs: dict[CompileRequest, Callable[[], Lowered]] = {}
        self._requests: dict[int, list[CompileRequest]] = {}

    def of(self, split: Split | None) -> list[CompileRequest]:
        """Return the requests for the validation set or the test set; none if no outputs are wanted.

        The first call for a split plans its batches. Errors are ignored here, because the prediction encounters them
        again.
        """
        if split is None or not self._run.cfg.training.validate_bleu:
            return []
        if id(split) not in self._requests:
            cfg, programs = self._run.cfg, dict[tuple[int, ...], Callable[[], Lowered]]()
            with contextlib.suppress(Exception):
                programs = task_of(cfg.model).programs(self._params, cfg.model, cfg, self._mesh, split)
            found = {CompileRequest("prediction", shape): lower for shape, lower in programs.items()}
            self._programs |= found
            self._requests[id(split)] = list(found)
        return self._requests[id(split)]

    def lower(self, request: CompileRequest) -> Lowered:
        """Trace a program."""
        return self._programs[request]()


def _on(mesh: Mesh, shape: Shape) -> tuple[int, ...]:
    """Rows and length of the sources, rows and length of the targets."""
    rows = round_up(shape.rows, row_shards(mesh))
    return rows, shape.src, rows, shape.tgt
