"""The update that a configuration describes: its task's loss and its optimiser, handed to `training.parallel`."""

import dataclasses
from collections.abc import Sequence

import jax
from jax.sharding import Mesh

from convs2s_jax.core.tokens import SPECIAL
from convs2s_jax.nn.types import Key, Tree
from convs2s_jax.training import optimizer
from convs2s_jax.training.batch import Batch, LossSums
from convs2s_jax.training.gathering import Exchange
from convs2s_jax.training.mesh import Parallel, ShardingRule
from convs2s_jax.training.parallel import compile_steps, loss_shards
from convs2s_jax.training.run.config import AnyModel, Config, TrainingConfig
from convs2s_jax.training.run.tasks.task_table import task_of
from convs2s_jax.training.step import Loss, Step, TrainState, init_state


def fresh_state(key: Key, model: AnyModel, training: TrainingConfig, *, source: int, target: int) -> TrainState:
    """The state before the first update, for vocabularies of `source` and `target` entries."""
    return state_of(task_of(model).init(key, model, source=source, target=target), model, training)


def state_of(params: Tree, model: AnyModel, training: TrainingConfig) -> TrainState:
    """The state before the first update, with these new parameters, which are merged."""
    # without the barrier, the samples are compiled again for each use: direction, length, and the test for zeros
    params = task_of(model).split(jax.lax.optimization_barrier(params), model)
    return init_state(params, optimizer.transformation(training.optimizer))


def vocabularies(cfg: Config, size: int | None = None, labels: int | None = None) -> dict[str, int]:
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


def loss_of(model: AnyModel, *, smoothing: float = 0.0, shards: int = 1) -> Loss[Batch, LossSums]:
    """The loss of a model's task.

    Args:
      model: its configuration.
      smoothing: of labels.
      shards: number of devices over which the rows of one call are sharded; see `parallel.loss_shards`.
    """
    task = task_of(model)

    def loss(params: Tree, batch: Batch, key: Key | None) -> LossSums:
        return task.batch_loss(params, model, batch, smoothing=smoothing, shards=shards, key=key)

    return loss


def executed_loss(cfg: Config, mesh: Mesh) -> Loss[Batch, LossSums]:
    """The loss of a whole batch, with the forms of convolutions that updates on this mesh compute."""
    model = _for_gradients(cfg.model, mesh, cfg.parallel, None)
    return loss_of(model, smoothing=cfg.training.label_smoothing)


def compile_configured(
    model: AnyModel,
    training: TrainingConfig,
    mesh: Mesh | None = None,
    *,
    parallel: Parallel = "jit",
    accumulates: bool = False,
    gather_once: tuple[str, ...] = (),
    rules: Sequence[ShardingRule] = (),
    platform: str | None = None,
) -> Step[Batch, LossSums]:
    """The compiled update of a configuration; see `parallel.compile_steps`.

    Args:
      model: its configuration.
      training: the optimiser, and how gradients are summed and clipped.
      mesh: the devices; None for one.
      parallel: how the update is spread over devices.
      accumulates: whether updates have several batches; see `Exchange.reduce_once_per_update`.
      gather_once: kernels that `fsdp` shards and that are gathered before the first layer; see `gathering.Exchange`.
      rules: how parameters are sharded, before those of `training.sharding`.
      platform: of the devices that the mesh stands in for (`ExecutionConfig.for_gradients`); None for its own.
    """
    model = _for_gradients(model, mesh, parallel, platform)
    exchange = Exchange(dtype=training.sum_dtype, reduce_once_per_update=accumulates, gather_once=gather_once)
    shards = 1 if mesh is None else loss_shards(mesh, parallel, exchange)
    return compile_steps(
        loss_of(model, smoothing=training.label_smoothing, shards=shards),
        optimizer.transformation(training.optimizer),
        mesh,
        parallel=parallel,
        clip=training.clip,
        skip_bad_steps=training.skip_bad_steps > 0,
        gathers_params=True,
        exchange=exchange,
        rules=rules,
    )


def _for_gradients(model: AnyModel, mesh: Mesh | None, parallel: Parallel, platform: str | None) -> AnyModel:
    """The model as it is executed for gradients.

    If kernels are sharded in use, plain sums over taps send less; if a precision is requested, they round less.
    """
    tensor = mesh is not None and mesh.shape["tensor"] > 1
    gathers = mesh is not None and mesh.size > 1 and (mesh.shape["fsdp"] > 1 or parallel == "explicit")
    execution = model.execution.for_gradients(
        platform or (jax.default_backend() if mesh is None else mesh.devices.flat[0].platform),
        model.dtype,
        plain=tensor or model.matmul_precision != "default",
        sharded=tensor or gathers,
    )
    return dataclasses.replace(model, execution=execution)
