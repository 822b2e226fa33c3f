"""An update on any mesh, compiled in one of four ways.

`jit`: the program is written for the whole batch, and XLA partitions it by the shardings of its arguments.
`explicit`: types of arrays say how they are sharded, and JAX derives the exchanges; the axes `data` and `fsdp`.
`shard_map`: each device runs the program on its rows, and exchanges parts of kernels and gradients by name; the axes
`data` and `fsdp`.
`pmap`: each device runs the program on its rows with all parameters; the axis `data`.
All give the same update as one device with the whole batch, dropout included.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from convs2s_jax.core.config import check
from convs2s_jax.nn.parts import whole
from convs2s_jax.nn.types import Array, Key, Tree
from convs2s_jax.training import dispatch, explicit, gathering, sharding
from convs2s_jax.training.mesh import ROWS, Parallel, ShardingRule, names_of, row_shards
from convs2s_jax.training.step import (
    B,
    Loss,
    S,
    Step,
    StepSums,
    TrainState,
    apply_gradients,
    gradients,
    merged_gradients,
    through_kernels,
)

Finish = Callable[[TrainState, tuple[Tree, Any], Array | None], tuple[TrainState, StepSums[Any]]]


def compile_steps(
    loss: Loss[B, S],
    optimizer: optax.GradientTransformation,
    mesh: Mesh | None = None,
    *,
    parallel: Parallel = "jit",
    clip: float = 0.0,
    skip_bad_steps: bool = False,
    takes_parts: bool = False,
    rules: Sequence[ShardingRule] = (),
) -> Step[B, S]:
    """The compiled functions of an update. Gradients compile once for each batch shape, the rest once.

    Args:
      loss: (params, batch, key) -> sums; see `step.Loss`.
      optimizer: any optax transformation, with its own learning rate or without one; see `step.apply_gradients`.
      mesh: the devices over which `training.sharding` spreads state and batches; None for one device.
      parallel: "jit", "explicit", "shard_map" or "pmap".
      clip: largest gradient norm; larger gradients are scaled down to it. 0 for no clipping.
      skip_bad_steps: whether to leave the state unchanged when the loss or the gradient is not finite.
      takes_parts: whether the loss makes parameters whole that are `nn.parts.Part`s, as the losses of this package do.
        Others get whole parameters on a mesh too, all at once.
      rules: how parameters are sharded, before `sharding.RULES`; `sharding.check_rules` compares them with parameters.

    Raises:
      UserError: a mesh with axes that `parallel` cannot use.
      ValueError: `parallel` is none of these ways.
    """
    if parallel not in _WAYS:
        raise ValueError(f"parallel is {parallel!r}: use {', '.join(map(repr, _WAYS))}")
    loss = loss if takes_parts else _of_whole(loss)

    def finish(state: TrainState, total: tuple[Tree, S], rate: Array | None) -> tuple[TrainState, StepSums[S]]:
        return apply_gradients(state, optimizer, *total, rate, clip=clip, skip_bad_steps=skip_bad_steps)

    return _WAYS[parallel](loss, finish, mesh, rules)


def loss_shards(mesh: Mesh, parallel: Parallel) -> int:
    """Number of shards of the rows that one call of the loss sees."""
    return row_shards(mesh) if parallel == "jit" else 1


def _of_whole(loss: Loss[B, S]) -> Loss[B, S]:
    return lambda params, batch, key: loss(whole(params), batch, key)


def _jit(loss: Loss[B, S], finish: Finish, mesh: Mesh | None, rules: Sequence[ShardingRule]) -> Step[B, S]:
    def in_parts(params: Tree, batch: B, key: Key | None) -> S:
        if mesh is None:
            return loss(params, batch, key)
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):  # for `nn.placing`
            return loss(gathering.constrained(params, mesh, rules), batch, key)

    def first(params: Tree, batch: B, key: Key | None) -> tuple[Tree, S]:
        return gradients(in_parts, params, batch, key=key)

    return _of_cut_state(first, finish, mesh, rules)


def _shard_map(loss: Loss[B, S], finish: Finish, mesh: Mesh | None, rules: Sequence[ShardingRule]) -> Step[B, S]:
    if mesh is None:
        return _jit(loss, finish, None, rules)
    tensor = mesh.shape["tensor"]
    check(tensor == 1, f"mesh.tensor is {tensor} with parallel=shard_map: it spreads rows; use 1, or parallel=jit")
    other = "data" if sharding.state_axis(mesh) == "fsdp" else "fsdp"
    for number, rule in enumerate(rules):
        named = [name for axes in rule.axes for name in names_of(axes)]
        check(
            other not in named or mesh.shape[other] == 1,
            f"mesh.rules[{number}].axes has {other} with parallel=shard_map, which gathers over "
            f"{sharding.state_axis(mesh)} only; drop it, or use parallel=jit",
        )

    def first(params: Tree, batch: B, key: Key | None) -> tuple[Tree, S]:
        def made(merged: Tree) -> tuple[Tree, S]:
            specs = jax.tree.map(lambda placed: placed.spec, sharding.shardings(merged, mesh, rules=rules))

            def local(merged: Tree, batch: B, key: Key | None) -> tuple[Tree, S]:
                def in_parts(params: Tree, batch: B, key: Key | None) -> S:
                    return loss(gathering.exchanged(params, specs, mesh), batch, key)

                begin = lax.axis_index(ROWS) * len(jax.tree.leaves(batch)[0])
                grads, sums = merged_gradients(in_parts, merged, batch, first=begin, key=key)
                return grads, lax.psum(sums, ROWS)

            each = jax.shard_map(
                local, mesh=mesh, in_specs=(specs, P(ROWS), P()), out_specs=(specs, P()), check_vma=False
            )
            found: tuple[Tree, S] = each(merged, batch, key)
            return found

        return through_kernels(params, made)

    return _of_cut_state(first, finish, mesh, rules)


def _explicit(loss: Loss[B, S], finish: Finish, mesh: Mesh | None, rules: Sequence[ShardingRule]) -> Step[B, S]:
    if mesh is None or mesh.size == 1:
        return _jit(loss, finish, mesh, rules)
    explicit.check_mesh(mesh)
    in_parts = explicit.in_parts(loss, mesh)

    def of_merged(merged: Tree, batch: B, key: Key | None) -> tuple[Tree, S]:
        return merged_gradients(in_parts, merged, batch, key=key)

    def first(params: Tree, batch: B, key: Key | None) -> tuple[Tree, S]:
        made = explicit.typed(of_merged, mesh, rules)
        return through_kernels(params, lambda merged: made(merged, batch, key))

    return _of_cut_state(first, finish, mesh, rules)


def _of_cut_state(
    gradients: Callable[[Tree, B, Key | None], tuple[Tree, S]],
    finish: Finish,
    mesh: Mesh | None,
    rules: Sequence[ShardingRule],
) -> Step[B, S]:
    """The programs of an update whose state lies as `sharding.shardings` says."""

    def placed(tree: Tree) -> Tree:
        return tree if mesh is None else lax.with_sharding_constraint(tree, sharding.shardings(tree, mesh, rules=rules))

    def first(params: Tree, batch: B, key: Key | None) -> tuple[Tree, S]:
        grads, sums = gradients(params, batch, key)
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


def _pmap(loss: Loss[B, S], finish: Finish, mesh: Mesh | None, rules: Sequence[ShardingRule]) -> Step[B, S]:
    check(not rules, "mesh.rules is given with parallel=pmap: each device has all parameters; drop it, or use jit")
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


_WAYS: dict[str, Callable[[Loss[Any, Any], Finish, Mesh | None, Sequence[ShardingRule]], Step[Any, Any]]] = {
    "jit": _jit,
    "explicit": _explicit,
    "shard_map": _shard_map,
    "pmap": _pmap,
}


def _added(total: Tree, more: Tree) -> Tree:
    return jax.tree.map(jnp.add, total, more)


def _of_all(mesh: Mesh, x: Array) -> Array:
    shards = [shard.data for shard in x.addressable_shards]
    return jax.make_array_from_single_device_arrays(x.shape, sharding.replicated(mesh), shards)
