"""An update on any mesh, compiled in one of three modes.

`jit`: the program is written for the whole batch, and XLA partitions it by the shardings of its arguments.
`shard_map`: each device runs the program on its rows, with named collectives for shards of kernels and gradients over
`data` and `fsdp`. XLA partitions what `tensor` divides.
`pmap`: each device runs the program on its rows with all parameters; the axis is `data`.
All give the same update as one device with the whole batch, dropout included.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import optax
from jax import lax
from jax.sharding import Mesh

from convs2s_jax.core.config import check
from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.sharded_params import gather
from convs2s_jax.nn.types import Array, Key, Tree
from convs2s_jax.training import by_device, by_pmap, dispatch, gathering, sharding
from convs2s_jax.training.gathering import EACH_BATCH, Exchange
from convs2s_jax.training.mesh import (
    Parallel,
    ShardingRule,
    check_mesh,
    names_of,
    row_shards,
    spans_slices,
)
from convs2s_jax.training.step import (
    BatchT,
    Finish,
    Loss,
    Step,
    StepSums,
    SumsT,
    TrainState,
    apply_gradients,
    gradients,
    gradients_through_merge,
    tree_add,
)


def compile_steps(
    loss: Loss[BatchT, SumsT],
    optimizer: optax.GradientTransformation,
    mesh: Mesh | None = None,
    *,
    parallel: Parallel = "jit",
    clip: float = 0.0,
    skip_bad_steps: bool = False,
    gathers_params: bool = False,
    exchange: Exchange = EACH_BATCH,
    rules: Sequence[ShardingRule] = (),
) -> Step[BatchT, SumsT]:
    """Return the compiled functions of an update. Gradients compile once per batch shape, the rest once.

    Args:
      loss: (params, batch, key) -> sums; see `step.Loss`.
      optimizer: an optax transformation, with its own learning rate or without one; see `step.apply_gradients`.
      mesh: the devices over which `training.sharding` shards state and batches; None for one device.
      parallel: "jit", "shard_map" or "pmap".
      clip: maximum gradient norm; larger gradients are scaled down to it. 0 for no clipping.
      skip_bad_steps: whether to leave the state unchanged when the loss or the gradient is not finite.
      gathers_params: whether the loss gathers parameters that are `nn.sharded_params.ShardedParam`s, as the losses of
        this package do. Others get full parameters on a mesh too, all gathered at once.
      exchange: how gradients are reduced over devices.
      rules: how parameters are sharded, before `sharding.RULES`; `sharding.check_rules` checks them against parameters.

    Raises:
      UserError: a mesh with axes that `parallel` cannot use.
      ValueError: `parallel` is not one of these modes, `clip` is negative or NaN, or the mesh has other axes than
        `mesh.make`.
    """
    if parallel not in _MODES:
        raise ValueError(f"parallel is {parallel!r}: use {', '.join(map(repr, _MODES))}")
    if not clip >= 0:
        raise ValueError(f"clip is {clip}: use a maximum gradient norm above 0, or 0 for no clipping")
    if mesh is not None:
        check_mesh(mesh)
    loss = loss if gathers_params else _of_gathered(loss)

    def finish(state: TrainState, total: tuple[Tree, SumsT], rate: Array | None) -> tuple[TrainState, StepSums[SumsT]]:
        return apply_gradients(state, optimizer, *total, rate, clip=clip, skip_bad_steps=skip_bad_steps)

    return _MODES[parallel](loss, finish, mesh, exchange, rules)


def loss_shards(mesh: Mesh, parallel: Parallel, exchange: Exchange = EACH_BATCH) -> int:
    """Number of shards of the rows that one call of the loss sees."""
    return row_shards(mesh) if parallel == "jit" and not _by_device(mesh, parallel, exchange) else 1


def _by_device(mesh: Mesh, parallel: Parallel, exchange: Exchange) -> bool:
    """Whether `jit` uses the program of `shard_map`, whose collectives are named.

    Under `jit`, XLA places the reductions: gradients cannot be accumulated per device, nor the dtype of the sum chosen.
    They are accumulated if a device has those of all its rows, or if the sum over `data` uses the network between
    slices. With `fsdp`, a reduction for each batch mostly takes less time on TPUs, and always less memory (decision
    0041).
    """
    accumulates = exchange.reduce_once_per_update and (mesh.shape["fsdp"] == 1 or spans_slices(mesh))
    return parallel == "jit" and row_shards(mesh) > 1 and (accumulates or exchange.dtype != "auto")


def _of_gathered(loss: Loss[BatchT, SumsT]) -> Loss[BatchT, SumsT]:
    return lambda params, batch, key: loss(gather(params), batch, key)


def _jit(
    loss: Loss[BatchT, SumsT],
    finish: Finish[SumsT],
    mesh: Mesh | None,
    exchange: Exchange,
    rules: Sequence[ShardingRule],
) -> Step[BatchT, SumsT]:
    if mesh is not None and _by_device(mesh, "jit", exchange):
        return _shard_map(loss, finish, mesh, exchange, rules)

    def sharded_loss(params: Tree, batch: BatchT, key: Key | None) -> SumsT:
        if mesh is None:
            return loss(params, batch, key)
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return loss(gathering.constrained(params, mesh, rules), batch, key)

    def first(params: Tree, batch: BatchT, key: Key | None) -> tuple[Tree, SumsT]:
        return gradients(sharded_loss, params, batch, key=key)

    return _sharded_state_step(first, finish, mesh, rules)


def _shard_map(
    loss: Loss[BatchT, SumsT],
    finish: Finish[SumsT],
    mesh: Mesh | None,
    exchange: Exchange,
    rules: Sequence[ShardingRule],
) -> Step[BatchT, SumsT]:
    if mesh is None or row_shards(mesh) == 1:  # there is no axis for a named collective
        return _jit(loss, finish, mesh, exchange, rules)
    _check_for_shard_map(mesh, rules)
    if exchange.reduce_once_per_update and mesh.shape["data"] > 1:
        return _accumulating_step(loss, finish, mesh, exchange, rules)

    def first(params: Tree, batch: BatchT, key: Key | None) -> tuple[Tree, SumsT]:
        return gradients_through_merge(
            params, lambda merged: by_device.reduced_gradients(loss, merged, batch, key, mesh, exchange, rules)
        )

    return _sharded_state_step(first, finish, mesh, rules)


def _check_for_shard_map(mesh: Mesh, rules: Sequence[ShardingRule]) -> None:
    other = "data" if sharding.state_axis(mesh) == "fsdp" else "fsdp"
    for number, rule in enumerate(rules):
        named = [name for axes in rule.axes for name in names_of(axes)]
        check(
            other not in named or mesh.shape[other] == 1,
            f"mesh.rules[{number}].axes contains {other}, but parallel=shard_map gathers over "
            f"{sharding.state_axis(mesh)} only (so does jit if training.sum_dtype is set, or data.batch.accumulate is "
            "above 1 on several slices); drop it, or use parallel=jit with training.sum_dtype=auto and "
            "data.batch.accumulate=1",
        )


def _accumulating_step(
    loss: Loss[BatchT, SumsT], finish: Finish[SumsT], mesh: Mesh, exchange: Exchange, rules: Sequence[ShardingRule]
) -> Step[BatchT, SumsT]:
    """Accumulate gradients of merged parameters on each device until `finish` sums them over `data`."""

    def first(params: Tree, batch: BatchT, key: Key | None) -> tuple[Tree, SumsT]:
        return by_device.unreduced_gradients(loss, weight_norm.merge(params), batch, key, mesh, exchange, rules)

    def finish_reduced(
        state: TrainState, total: tuple[Tree, SumsT], rate: Array | None
    ) -> tuple[TrainState, StepSums[SumsT]]:
        grads = gradients_through_merge(
            state.params, lambda merged: by_device.reduce_over_data(total, merged, mesh, exchange, rules)
        )
        after, report = finish(state, grads, rate)
        return lax.with_sharding_constraint(after, sharding.shardings(after, mesh, rules=rules)), report

    return _compiled(first, finish_reduced, mesh)


def _sharded_state_step(
    gradients: Callable[[Tree, BatchT, Key | None], tuple[Tree, SumsT]],
    finish: Finish[SumsT],
    mesh: Mesh | None,
    rules: Sequence[ShardingRule],
) -> Step[BatchT, SumsT]:
    """The programs of an update whose state is sharded as in `sharding.shardings`."""

    def placed(tree: Tree) -> Tree:
        return tree if mesh is None else lax.with_sharding_constraint(tree, sharding.shardings(tree, mesh, rules=rules))

    def first(params: Tree, batch: BatchT, key: Key | None) -> tuple[Tree, SumsT]:
        grads, sums = gradients(params, batch, key)
        return placed(grads), sums

    def finish_placed(
        state: TrainState, total: tuple[Tree, SumsT], rate: Array | None
    ) -> tuple[TrainState, StepSums[SumsT]]:
        after, report = finish(state, total, rate)
        return placed(after), report

    return _compiled(first, finish_placed, mesh)


def _compiled(
    first: Callable[[Tree, BatchT, Key | None], tuple[Tree, SumsT]], finish: Finish[SumsT], mesh: Mesh | None
) -> Step[BatchT, SumsT]:
    """The programs of an update that adds up what `first` returns for each batch."""

    def add(total: tuple[Tree, SumsT], params: Tree, batch: BatchT, key: Key | None) -> tuple[Tree, SumsT]:
        return tree_add(total, first(params, batch, key))

    return Step(
        first=dispatch.jit_with_barriers(first, mesh),
        add=dispatch.jit_with_barriers(add, mesh, donate_argnums=0),
        finish=dispatch.jit(finish, donate_argnums=0),
    )


Mode = Callable[[Loss[Any, Any], Finish[Any], Mesh | None, Exchange, Sequence[ShardingRule]], Step[Any, Any]]
_MODES: dict[str, Mode] = {
    "jit": _jit,
    "shard_map": _shard_map,
    "pmap": by_pmap.steps,
}
