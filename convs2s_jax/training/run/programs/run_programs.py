"""The programs of a run, which the runs of a process share.

A run that differs from an earlier one only in what its programs do not depend on (`ProgramKey`), such as the seed, the
learning rate or the number of updates, retraces and recompiles none of them.
"""

import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from convs2s_jax.core.config import check
from convs2s_jax.nn import draws
from convs2s_jax.nn.types import Key, Tree
from convs2s_jax.training import by_pmap, dispatch, optimizer, sharding
from convs2s_jax.training.batch import Batch, LossSums
from convs2s_jax.training.mesh import Parallel, ShardingRule, row_shards
from convs2s_jax.training.run.config import AnyModel, Config, TrainingConfig
from convs2s_jax.training.run.programs.abstract_arrays import placed, places
from convs2s_jax.training.run.programs.configured import compile_configured, fresh_state, vocabularies
from convs2s_jax.training.run.programs.first_state import FirstState
from convs2s_jax.training.run.shared_programs import shared
from convs2s_jax.training.step import Step, TrainState, init_state


class ProgramKey(NamedTuple):
    """The parts of a configuration that the programs of a run depend on.

    Attributes:
      model: its configuration.
      training: with defaults in the fields that programs do not depend on.
      parallel: how the update is spread over devices.
      accumulates: whether updates have several batches.
      gather_once: kernels that `fsdp` shards and that are gathered before the first layer; see `gathering.Exchange`.
      rules: how parameters are sharded, before those of `training.sharding`.
    """

    model: AnyModel
    training: TrainingConfig
    parallel: Parallel
    accumulates: bool
    gather_once: tuple[str, ...]
    rules: tuple[ShardingRule, ...]


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
        gather_once=("*",) if cfg.mesh.fsdp == 1 else cfg.mesh.gather_once,
        rules=cfg.mesh.rules,
    )


def abstract_state(cfg: Config) -> TrainState:
    """Shapes of the state before the first update, for vocabularies of the configured sizes."""
    return _abstract_state(program_key(cfg), **vocabularies(cfg))


@shared
def _abstract_state(key: ProgramKey, *, source: int, target: int) -> TrainState:
    state: TrainState = jax.eval_shape(_fresh(key, source=source, target=target), jax.random.key(0))
    return state


@shared
def placed_state(key: ProgramKey, mesh: Mesh, *, source: int, target: int) -> TrainState:
    """Shapes of the state for vocabularies of these sizes, with the sharding that each array has between updates."""
    state = _abstract_state(key, source=source, target=target)
    return placed(state, sharding.shardings(state, mesh, key.parallel, rules=key.rules))


@shared
def state_program(key: ProgramKey, mesh: Mesh, *, source: int, target: int) -> Callable[[Key], TrainState]:
    """The program of the state before the first update: on one device a `FirstState`, if it can be one.

    With several devices, each initialises only its own shards.

    Samples are bitwise equal on all meshes. Lengths of sharded weight-normalised kernels are sums over the sums of
    shards, so these differ by rounding (decision 0038).

    Args:
      key: what programs depend on.
      mesh: devices.
      source, target: sizes of the vocabularies.
    """
    layout = places(placed_state(key, mesh, source=source, target=target))
    if mesh.devices.size == 1 and draws.can_be_batched():
        with contextlib.suppress(draws.NestedDrawError):
            return FirstState(key.model, key.training, source=source, target=target, mesh=mesh, layout=layout)
    return dispatch.jit_once(_fresh(key, source=source, target=target), mesh, out_shardings=layout)


@shared
def begin_program(key: ProgramKey, mesh: Mesh, *, source: int, target: int) -> Callable[[Tree], TrainState]:
    """The program of the state before the first update that starts from given parameters: those of another run.

    Args:
      key: what programs depend on.
      mesh: devices.
      source, target: sizes of the vocabularies.
    """
    begin = partial(init_state, optimizer=optimizer.transformation(key.training.optimizer))
    layout = places(placed_state(key, mesh, source=source, target=target))
    return dispatch.jit_once(begin, mesh, out_shardings=layout)


def _fresh(key: ProgramKey, *, source: int, target: int) -> Callable[[Key], TrainState]:
    return partial(fresh_state, model=key.model, training=key.training, source=source, target=target)


def check_rules(cfg: Config) -> None:
    """Refuse `mesh.rules` and `mesh.gather_once` that do not fit the model or `parallel`. Raises UserError."""
    if cfg.parallel == "pmap":
        by_pmap.check_rules(cfg.mesh.rules)
    if cfg.mesh.rules:
        sharding.check_rules(abstract_state(cfg).params, cfg.mesh.rules)
    if cfg.mesh.gather_once:
        check(
            cfg.parallel in ("jit", "shard_map"),
            f"mesh.gather_once is set with parallel={cfg.parallel}: use jit or shard_map, or drop it",
        )
        sharding.check_gather_once(abstract_state(cfg).params, cfg.mesh.gather_once)


def check_types(cfg: Config, mesh: Mesh, step: Step[Batch, LossSums]) -> None:
    """Refuse a model that `parallel=explicit` cannot train, by tracing a small batch. Raises UserError."""
    if cfg.parallel != "explicit":
        return
    tokens: Any = jax.ShapeDtypeStruct((2 * row_shards(mesh), 2), jnp.int32)
    jax.eval_shape(step.first, abstract_state(cfg).params, Batch(src=tokens, tgt=tokens), jax.random.key(0))


@shared
def compile_run(key: ProgramKey, mesh: Mesh, platform: str | None = None) -> Step[Batch, LossSums]:
    """The compiled update of a run on its mesh, for the platform of the mesh or another (`compile_configured`)."""
    return compile_configured(
        key.model,
        key.training,
        mesh,
        parallel=key.parallel,
        accumulates=key.accumulates,
        gather_once=key.gather_once,
        rules=key.rules,
        platform=platform,
    )
