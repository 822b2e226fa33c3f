"""An update on any mesh, compiled in one of two ways.

`jit`: the program is written for the whole batch and XLA's partitioner spreads it by the shardings of its arguments.
`pmap`: each device runs the program on its rows and sums of gradients go round; data parallel only. Both give the
update of one device with the same batch, dropout included.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh

from convs2s_jax.core.config import check
from convs2s_jax.nn.types import Array, Key, Tree
from convs2s_jax.training import sharding, step
from convs2s_jax.training.loss import Batch, LossSums
from convs2s_jax.training.mesh import Parallel, row_shards
from convs2s_jax.training.run.config import AnyModel, TrainingConfig
from convs2s_jax.training.step import Step, StepSums, TrainState


def compile_steps(
    model: AnyModel, cfg: TrainingConfig, mesh: Mesh | None = None, *, parallel: Parallel = "jit"
) -> Step:
    """Compiled functions of an update; gradients compile once for each batch shape, the rest once.

    Args:
      model, cfg: configuration.
      mesh: over which state and batches lie, as `sharding` says; None for one device.
      parallel: "jit" or "pmap".

    Raises:
      UserError: pmap with a mesh that cuts parameters.
    """
    return _WAYS[parallel](model, cfg, mesh)


def _jit(model: AnyModel, cfg: TrainingConfig, mesh: Mesh | None) -> Step:
    shards = 1 if mesh is None else row_shards(mesh)
    gradients = partial(step.gradients, model=model, cfg=cfg, shards=shards)
    if mesh is not None:
        gradients = partial(gradients, gather=sharding.gatherer(mesh))

    def laid(tree: Tree) -> Tree:
        return tree if mesh is None else lax.with_sharding_constraint(tree, sharding.shardings(tree, mesh))

    def first(params: Tree, batch: Batch, key: Key | None) -> tuple[Tree, LossSums]:
        grads, sums = gradients(params, batch=batch, key=key)
        return laid(grads), sums

    def add(total: tuple[Tree, LossSums], params: Tree, batch: Batch, key: Key | None) -> tuple[Tree, LossSums]:
        return _added(total, first(params, batch, key))

    def finish(state: TrainState, total: tuple[Tree, LossSums], rate: Array) -> tuple[TrainState, StepSums]:
        grads, sums = total
        after, report = step.apply(state, cfg, grads, sums, rate)
        return laid(after), report

    return Step(
        first=jax.jit(first),
        add=jax.jit(add, donate_argnums=0),
        finish=jax.jit(finish, donate_argnums=0),
    )


def _pmap(model: AnyModel, cfg: TrainingConfig, mesh: Mesh | None) -> Step:
    devices = jax.devices()[:1] if mesh is None else list(mesh.devices.flat)
    for axis in ("fsdp", "tensor"):
        size = 1 if mesh is None else mesh.shape[axis]
        check(size == 1, f"mesh.{axis} is {size} with parallel=pmap: it only spreads data; use 1, or parallel=jit")
    each = partial(jax.pmap, axis_name="data", devices=devices)

    def cut(batch: Batch) -> Batch:
        """[B, U] -> [devices, B / devices, U]: no element moves."""
        return jax.tree.map(lambda x: x.reshape(len(devices), -1, x.shape[-1]), batch)

    def public(tree: Tree) -> Tree:
        """What is the same on all devices, as an array over all of them: pmap's results know those of a process."""
        return tree if mesh is None or not mesh.is_multi_process else jax.tree.map(partial(_of_all, mesh), tree)

    def gradients(params: Tree, batch: Batch, key: Key | None) -> tuple[Tree, LossSums]:
        begin = lax.axis_index("data") * len(batch.tgt)
        return lax.psum(step.gradients(params, model, cfg, batch, first=begin, key=key), "data")

    def finish(state: TrainState, total: tuple[Tree, LossSums], rate: Array) -> tuple[TrainState, StepSums]:
        return step.apply(state, cfg, *total, rate)

    cutting, adding = jax.jit(cut), jax.jit(_added, donate_argnums=0)
    gradients_on = each(gradients, in_axes=(None, 0, None), out_axes=None)

    def first(params: Tree, batch: Batch, key: Key | None) -> tuple[Tree, LossSums]:
        return public(gradients_on(params, cutting(batch), key))

    return Step(
        first=first,
        add=lambda total, params, batch, key: adding(total, first(params, batch, key)),
        finish=jax.jit(finish, donate_argnums=0),  # nothing in it differs from device to device
    )


_WAYS: dict[str, Callable[[AnyModel, TrainingConfig, Mesh | None], Step]] = {"jit": _jit, "pmap": _pmap}


def _added(total: Tree, more: Tree) -> Tree:
    return jax.tree.map(jnp.add, total, more)


def _of_all(mesh: Mesh, x: Array) -> Array:
    shards = [shard.data for shard in x.addressable_shards]
    return jax.make_array_from_single_device_arrays(x.shape, sharding.replicated(mesh), shards)
