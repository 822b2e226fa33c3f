"""An update on any mesh, compiled in one of two ways.

`jit`: the program is written for the whole batch, and XLA partitions it by the shardings of its arguments.
`pmap`: each device runs the program on its rows, and gradients are summed over devices; data parallel only.
Both give the same update as one device with the whole batch, dropout included.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import Mesh

from convs2s_jax.core.config import check
from convs2s_jax.nn.types import Array, Key, Tree
from convs2s_jax.training import dispatch, sharding
from convs2s_jax.training.mesh import Parallel, row_shards
from convs2s_jax.training.step import B, Loss, S, Step, StepSums, TrainState, apply_gradients, gradients

Finish = Callable[[TrainState, tuple[Tree, Any], Array | None], tuple[TrainState, StepSums[Any]]]


def compile_steps(
    loss: Loss[B, S],
    optimizer: optax.GradientTransformation,
    mesh: Mesh | None = None,
    *,
    parallel: Parallel = "jit",
    clip: float = 0.0,
    skip_bad_steps: bool = False,
) -> Step[B, S]:
    """The compiled functions of an update. Gradients compile once for each batch shape, the rest once.

    Args:
      loss: (params, batch, key) -> sums; see `step.Loss`.
      optimizer: any optax transformation, with its own learning rate or without one; see `step.apply_gradients`.
      mesh: the devices over which `training.sharding` spreads state and batches; None for one device.
      parallel: "jit" or "pmap".
      clip: largest gradient norm; larger gradients are scaled down to it. 0 for no clipping.
      skip_bad_steps: whether to leave the state unchanged when the loss or the gradient is not finite.

    Raises:
      UserError: pmap with a mesh that shards parameters.
      ValueError: `parallel` is neither "jit" nor "pmap".
    """
    if parallel not in _WAYS:
        raise ValueError(f'parallel is {parallel!r}: use "jit" or "pmap"')

    def finish(state: TrainState, total: tuple[Tree, S], rate: Array | None) -> tuple[TrainState, StepSums[S]]:
        return apply_gradients(state, optimizer, *total, rate, clip=clip, skip_bad_steps=skip_bad_steps)

    return _WAYS[parallel](loss, finish, mesh)


def loss_shards(mesh: Mesh, parallel: Parallel) -> int:
    """Number of shards of the rows that one call of the loss sees."""
    return row_shards(mesh) if parallel == "jit" else 1


def _jit(loss: Loss[B, S], finish: Finish, mesh: Mesh | None) -> Step[B, S]:
    gather = sharding.gatherer(mesh) if mesh is not None else lambda params: params

    def placed(tree: Tree) -> Tree:
        return tree if mesh is None else lax.with_sharding_constraint(tree, sharding.shardings(tree, mesh))

    def first(params: Tree, batch: B, key: Key | None) -> tuple[Tree, S]:
        grads, sums = gradients(loss, params, batch, gather=gather, key=key)
        return placed(grads), sums

    def add(total: tuple[Tree, S], params: Tree, batch: B, key: Key | None) -> tuple[Tree, S]:
        return _added(total, first(params, batch, key))

    def finish_placed(state: TrainState, total: tuple[Tree, S], rate: Array | None) -> tuple[TrainState, StepSums[S]]:
        after, report = finish(state, total, rate)
        return placed(after), report

    return Step(
        first=dispatch.jit_with_barriers(first, mesh),
        add=dispatch.jit_with_barriers(add, mesh, donate_argnums=0),
        finish=dispatch.jit(finish_placed, donate_argnums=0),
    )


def _pmap(loss: Loss[B, S], finish: Finish, mesh: Mesh | None) -> Step[B, S]:
    devices = jax.devices()[:1] if mesh is None else list(mesh.devices.flat)
    for axis in ("fsdp", "tensor"):
        size = 1 if mesh is None else mesh.shape[axis]
        check(size == 1, f"mesh.{axis} is {size} with parallel=pmap: it only spreads data; use 1, or parallel=jit")
    each = partial(dispatch.pmap, axis_name="data", devices=devices)

    def cut(batch: B) -> B:
        """[B, ...] -> [devices, B / devices, ...]. No data moves between devices."""
        return jax.tree.map(lambda x: x.reshape(len(devices), -1, *x.shape[1:]), batch)

    def public(tree: Tree) -> Tree:
        """Replicated results as arrays over all devices: those of pmap only cover the devices of this process."""
        return tree if mesh is None or not mesh.is_multi_process else jax.tree.map(partial(_of_all, mesh), tree)

    def summed(params: Tree, batch: B, key: Key | None) -> tuple[Tree, S]:
        begin = lax.axis_index("data") * len(jax.tree.leaves(batch)[0])
        return lax.psum(gradients(loss, params, batch, first=begin, key=key), "data")

    cut_compiled, add_compiled = dispatch.jit(cut), dispatch.jit(_added, donate_argnums=0)
    summed_compiled = each(summed, in_axes=(None, 0, None), out_axes=None)

    def first(params: Tree, batch: B, key: Key | None) -> tuple[Tree, S]:
        return public(summed_compiled(params, cut_compiled(batch), key))

    return Step(
        first=first,
        add=lambda total, params, batch, key: add_compiled(total, first(params, batch, key)),
        finish=dispatch.jit(finish, donate_argnums=0),  # its inputs are the same on all devices
    )


_WAYS: dict[str, Callable[[Loss[Any, Any], Finish, Mesh | None], Step[Any, Any]]] = {"jit": _jit, "pmap": _pmap}


def _added(total: Tree, more: Tree) -> Tree:
    return jax.tree.map(jnp.add, total, more)


def _of_all(mesh: Mesh, x: Array) -> Array:
    shards = [shard.data for shard in x.addressable_shards]
    return jax.make_array_from_single_device_arrays(x.shape, sharding.replicated(mesh), shards)
