"""The programs of a run: the update, the loss and the first state, compiled once for equal configurations.

A run that differs from an earlier one only in what its programs do not depend on (`ProgramKey`), such as the seed, the
learning rate or the number of updates, retraces and recompiles none of them.

Threads compile the gradients of an epoch's batches before they are needed (`training.compile_ahead`). The optimiser's
part is not compiled ahead: the first update needs it right after its gradient, whose compilation takes most of the
time.
"""

import dataclasses
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import numpy as np
from jax.sharding import Mesh, Sharding
from jax.stages import Lowered

from convs2s_jax.core.rows import round_up
from convs2s_jax.core.tokens import SPECIAL
from convs2s_jax.data.shapes import Shape
from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.types import Key, Tree
from convs2s_jax.training import dispatch, flops, optimizer, sharding
from convs2s_jax.training.batch import Batch
from convs2s_jax.training.mesh import Parallel, ShardingRule
from convs2s_jax.training.parallel import check_pmap, compile_steps, in_use
from convs2s_jax.training.run.compilations import shared
from convs2s_jax.training.run.config import AnyModel, Config, TrainingConfig
from convs2s_jax.training.run.processes import distributed
from convs2s_jax.training.run.tasks.task_table import task_of
from convs2s_jax.training.step import Loss, LossSums, Step, StepSums, TrainState, init_state, update

SOFTMAX_ROWS_OF_GPUS = 4096
"""Default of `ExecutionConfig.softmax_rows` there."""


class ProgramKey(NamedTuple):
    """The parts of a configuration that the programs of a run depend on.

    Attributes:
      model: its configuration.
      training: with defaults in the fields that programs do not depend on.
      parallel: how the update is spread over devices.
      accumulates: whether updates have several batches.
      rules: how parameters are sharded, before those of `training.sharding`.
    """

    model: AnyModel
    training: TrainingConfig = TrainingConfig()
    parallel: Parallel = "jit"
    accumulates: bool = False
    rules: tuple[ShardingRule, ...] = ()


def program_key(cfg: Config) -> ProgramKey:
    """The key of a configuration; equal for those whose programs are equal."""
    training = TrainingConfig(
        optimizer=cfg.training.optimizer,
        clip=cfg.training.clip,
        sum_dtype=cfg.training.sum_dtype,
        label_smoothing=cfg.training.label_smoothing,
        skip_bad_steps=min(cfg.training.skip_bad_steps, 1),
    )
    return ProgramKey(
        model=cfg.model,
        training=training,
        parallel=cfg.parallel,
        accumulates=cfg.data.batch.accumulate > 1,
        rules=cfg.mesh.rules,
    )


def abstract_batch(mesh: Mesh, *, rows: int, src: int, tgt: int) -> Batch:
    """A batch of this many rows and tokens per row, sharded over the devices as in training."""
    sides: list[Any] = [jax.ShapeDtypeStruct((rows, length), "int32") for length in (src, tgt)]
    return placed(Batch(src=sides[0], tgt=sides[1]), sharding.batch_sharding(mesh))


def abstract_key() -> Any:
    """A random key."""
    return jax.eval_shape(lambda: jax.random.key(0))


def placed(tree: Tree, where: Tree) -> Tree:
    """Abstract arrays with shardings, one for all or one for each."""
    if isinstance(where, Sharding):
        where = jax.tree.map(lambda _: where, tree)
    return jax.tree.map(lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), tree, where)


def fresh_state(key: Key, model: AnyModel, training: TrainingConfig, *, source: int, target: int) -> TrainState:
    """The state before the first update, for vocabularies of `source` and `target` entries."""
    return state_of(task_of(model).init(key, model, source=source, target=target), model, training)


def state_of(params: Tree, model: AnyModel, training: TrainingConfig) -> TrainState:
    """The state before the first update, with these new parameters, which are merged."""
    # without the barrier, the samples are compiled again for each use: direction, length, and the test for zeros
    params = task_of(model).split(jax.lax.optimization_barrier(params), model)
    return init_state(params, optimizer.transformation(training.optimizer))


def abstract_state(model: AnyModel, training: TrainingConfig, *, source: int, target: int) -> TrainState:
    """Shapes of `fresh_state`."""
    fresh = partial(fresh_state, model=model, training=training, source=source, target=target)
    state: TrainState = jax.eval_shape(fresh, jax.random.key(0))
    return state


def vocabulary_sizes(cfg: Config, size: int | None = None, labels: int | None = None) -> dict[str, int]:
    """Entries of the vocabularies by side, the special symbols included.

    Args:
      cfg: the configuration, which sets sizes.
      size: of both, in place of those.
      labels: number of a classifier's labels, which only its training text determines; None for the minimum, 2.
    """
    asked = cfg.data.vocabulary
    source, target = size or asked.src_size, size or asked.tgt_size
    if cfg.classifies:
        return {"source": source, "target": len(SPECIAL) + (labels or 2)}
    if cfg.data.one_sided:
        return {"source": target, "target": target}
    return {"source": source, "target": source if asked.joint or cfg.translator.share_embeddings else target}


def loss_of(model: AnyModel, *, smoothing: float = 0.0) -> Loss[Batch, LossSums]:
    """The loss of a model's task, with label smoothing."""
    task = task_of(model)

    def loss(params: Tree, batch: Batch, key: Key | None) -> LossSums:
        sums: LossSums = task.batch_loss(params, model, batch, smoothing=smoothing, key=key)
        return sums

    return loss


def _for_gradients(model: AnyModel, mesh: Mesh | None) -> AnyModel:
    """The model as it is executed for gradients, with the defaults of `execution` resolved.

    If kernels are sharded in use, plain sums over taps send less; if a precision is requested, they round less. From
    jax 0.11 on, XLA's bfloat16 products on CPUs are faster than its convolutions.
    """
    platform = jax.default_backend() if mesh is None else mesh.devices.flat[0].platform
    plain = (mesh is not None and mesh.shape["tensor"] > 1) or model.matmul_precision != "default"
    chosen: dict[str, Any] = {}
    if model.execution.convolution == "auto" and platform == "cpu":
        if model.dtype == "bfloat16" and jax.__version_info__ >= (0, 11):
            chosen["convolution"] = "products"
        elif not plain:
            chosen["convolution"] = "winograd"
    if model.execution.softmax_rows is None and platform == "gpu":
        chosen["softmax_rows"] = SOFTMAX_ROWS_OF_GPUS
    return dataclasses.replace(model, execution=dataclasses.replace(model.execution, **chosen))


@shared
def placed_state(key: ProgramKey, mesh: Mesh, *, source: int, target: int) -> TrainState:
    """Shapes of the state for vocabularies of these sizes, with the sharding that each array has between updates."""
    state = abstract_state(key.model, key.training, source=source, target=target)
    return placed(state, sharding.shardings(state, mesh, key.parallel, rules=key.rules))


@shared
def state_program(
    key: ProgramKey, mesh: Mesh, tuned: bool = False, /, *, source: int, target: int
) -> Callable[[Key | Tree], TrainState]:
    """The program of the state before the first update, with vocabularies of these sizes.

    Each device initialises only its own shards. Samples are bitwise equal on all meshes. Lengths of sharded
    weight-normalised kernels are sums over the sums of shards, so these differ by rounding (docs/decisions.md).

    Returns:
      A function of a random key; if the run is `tuned`, of the parameters of another run.
    """
    if tuned:
        begin = partial(init_state, optimizer=optimizer.transformation(key.training.optimizer))
    else:
        begin = partial(fresh_state, model=key.model, training=key.training, source=source, target=target)
    layout = placed_state(key, mesh, source=source, target=target)
    return dispatch.jit_once(begin, mesh, out_shardings=jax.tree.map(lambda x: x.sharding, layout))


def check_rules(cfg: Config) -> None:
    """Refuse `mesh.rules` that do not fit the model or `parallel`. Raises UserError."""
    if cfg.parallel == "pmap":
        check_pmap(None, cfg.mesh.rules)
    if cfg.mesh.rules:
        state = abstract_state(cfg.model, cfg.training, **vocabulary_sizes(cfg))
        sharding.check_rules(state.params, cfg.mesh.rules)


@shared
def compile_run(key: ProgramKey, mesh: Mesh | None = None) -> Step[Batch, LossSums]:
    """The compiled update of a run; see `parallel.compile_steps`.

    Args:
      key: what it depends on.
      mesh: the devices; None for one.
    """
    model, training = _for_gradients(key.model, mesh), key.training
    return compile_steps(
        loss_of(model, smoothing=training.label_smoothing),
        optimizer.transformation(training.optimizer),
        mesh,
        parallel=key.parallel,
        clip=training.clip,
        skip_bad_steps=training.skip_bad_steps > 0,
        layers_gather=model.dtype,
        sum_dtype=training.sum_dtype,
        accumulates=key.accumulates,
        rules=key.rules,
    )


@shared
def evaluator(key: ProgramKey, mesh: Mesh) -> Callable[[Tree, Batch], LossSums]:
    """The jitted loss of one batch, without dropout and smoothing. With pmap parameters are whole and stay so."""
    loss = loss_of(key.model)

    def sums(params: Tree, batch: Batch) -> LossSums:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            given = params if key.parallel == "pmap" else in_use(params, mesh, key.rules, key.model.dtype)
            return loss(given, batch, None)

    return dispatch.jit(sums, out_shardings=sharding.replicated(mesh))


merged_kernels = dispatch.jit(weight_norm.merge)
"""The kernels of a training state's parameters."""


class Programs:
    """The programs of a run; as a context manager, since compilations have to end.

    Threads trace one after another: tracing is Python, where only one thread runs at a time, and contention makes it
    slower. So the first requested shape is compiled while the second is traced. Errors are ignored: whoever needs the
    program encounters them again, and may have the memory that was missing while other work ran.

    Attributes:
      mesh: the devices.
      layout: shapes of the state, with the sharding that each array has between updates.
      step: the compiled update. With `parallel="pmap"` it cannot be compiled without its arguments, and is not.
      evaluate: (merged kernels, batch) -> the loss of a batch, without dropout and smoothing.
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
        self.evaluate = evaluator(key, mesh)

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
                self.mesh, rows=round_up(shape.rows, sharding.row_shards(self.mesh)), src=shape.src, tgt=shape.tgt
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
