"""An update on any mesh, compiled in one of three modes.

`jit`: the program is written for the whole batch, and XLA partitions it by the shardings of its arguments.
`shard_map`: each row of devices along `data` runs the program on its rows of the batch, with named collectives over
`data`, and XLA partitions what `fsdp` or `tensor` divide. With one device along `data` it is `jit`.
`pmap`: each device runs the program on its rows with all parameters; the axis is `data`.
All give the same update as one device with the whole batch, dropout included.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike

from convs2s_jax.core.config import check
from convs2s_jax.nn import weight_norm
from convs2s_jax.nn.affine import Affine
from convs2s_jax.nn.sharding import ShardedKernel, gather
from convs2s_jax.nn.trees import path_of
from convs2s_jax.nn.types import Array, Key, Tree, accumulation_dtype
from convs2s_jax.training import dispatch, sharding
from convs2s_jax.training.mesh import Parallel, ShardingRule, spans_slices
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
)

SumDtype = Literal["auto", "float32", "bfloat16"]
"""The dtype of gradient sums over `data`: "auto" is float32 with named collectives, and left to XLA in programs that it
partitions, which sum in the dtype of the products."""


class Placement(NamedTuple):
    """Where arrays of an update are, and how gradients are summed: arguments of `compile_steps`."""

    mesh: Mesh | None
    rules: Sequence[ShardingRule]
    layers_gather: DTypeLike | None
    sum_dtype: SumDtype
    accumulates: bool


def compile_steps(
    loss: Loss[BatchT, SumsT],
    optimizer: optax.GradientTransformation,
    mesh: Mesh | None = None,
    *,
    parallel: Parallel = "jit",
    clip: float = 0.0,
    skip_bad_steps: bool = False,
    layers_gather: DTypeLike | None = None,
    sum_dtype: SumDtype = "auto",
    accumulates: bool = False,
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
      layers_gather: dtype in which the loss computes, if it gathers kernels that are `nn.sharding.ShardedKernel`s, as
        the losses of this package do; others get full parameters on a mesh too, all gathered at once.
      sum_dtype: dtype of the sums of gradients over `data`.
      accumulates: whether updates have several batches, so that gradients are summed over devices once per update.
        `jit` with `fsdp` does so only if the mesh spans slices, since one sum for each batch mostly takes less time.
        `pmap` sums those of each batch.
      rules: how parameters are sharded, before `sharding.RULES`; `sharding.check_rules` checks them against parameters.

    Raises:
      UserError: a mesh with axes that `parallel` cannot use, or `sum_dtype` without sums over `data`.
      ValueError: `parallel` is not one of these modes, `clip` is negative or NaN, or the mesh has other axes than
        `mesh.make`.
    """
    if parallel not in ("jit", "shard_map", "pmap"):
        raise ValueError(f"parallel is {parallel!r}: use 'jit', 'shard_map', 'pmap'")
    if not clip >= 0:
        raise ValueError(f"clip is {clip}: use a maximum gradient norm above 0, or 0 for no clipping")

    def finish(state: TrainState, total: tuple[Tree, SumsT], rate: Array | None) -> tuple[TrainState, StepSums[SumsT]]:
        return apply_gradients(state, optimizer, *total, rate, clip=clip, skip_bad_steps=skip_bad_steps)

    place = Placement(mesh, rules, layers_gather, sum_dtype, accumulates)
    if parallel == "pmap":
        return _pmap(loss, finish, place)
    if mesh is None:
        return _jit(loss, finish, place)
    sharding.check_mesh(mesh)
    all_three = all(size > 1 for size in mesh.shape.values())
    # XLA's partitioner ends the process on lookups in a `shard_map` over one of three axes (jax 0.10)
    check(
        parallel == "jit" or not all_three,
        "parallel is shard_map, but data, fsdp and tensor of the mesh are above 1: set one of them to 1, or use jit",
    )
    check(
        sum_dtype == "auto" or (mesh.shape["data"] > 1 and not all_three) or sharding.row_shards(mesh) == 1,
        f"training.sum_dtype is {sum_dtype}: it is the dtype of sums over data, on meshes where data is above 1 "
        "and fsdp or tensor is 1; use auto",
    )
    once = accumulates and (mesh.shape["fsdp"] == 1 or spans_slices(mesh))
    named = parallel == "shard_map" or sum_dtype != "auto" or once
    if named and mesh.shape["data"] > 1 and not all_three:
        return _shard_map(loss, finish, place, mesh)
    return _jit(loss, finish, place)


def in_use(
    params: Tree,
    mesh: Mesh | AbstractMesh | None,
    rules: Sequence[ShardingRule] = (),
    dtype: DTypeLike | None = None,
) -> Tree:
    """Merged parameters as a loss uses them: sharded over `tensor` only, or `ShardedKernel`s that layers gather.

    Args:
      params: sharded as by `sharding.shardings`; within a `shard_map` over `data`, whole along it.
      mesh: the axes; those that are manual have no part in it.
      rules: of `sharding.shardings`.
      dtype: in which sharded arrays are sent. Kernels of the layers in `blocks` are then `ShardedKernel`s if `fsdp`
        shards them. None: all parameters are gathered here, in their own dtype.
    """
    manual = mesh.manual_axes if isinstance(mesh, AbstractMesh) else ()
    if mesh is None or all(size == 1 for axis, size in mesh.shape.items() if axis not in manual):
        return params
    axis = sharding.state_axis(mesh)

    def array(name: str, x: Array, *, kernel: bool = False) -> Any:
        cuts = (None, None if axis in manual else axis)
        used, stored = (NamedSharding(mesh, sharding.spec(name, x.shape, mesh, cut=cut, rules=rules)) for cut in cuts)
        if used == stored or dtype is None:
            return gather(x, used, stored, x.dtype)
        if kernel and axis == "fsdp":
            return ShardedKernel(x, used, stored, x.dtype)
        return gather(x, used, stored, dtype).astype(x.dtype)

    def node(path: tuple[Any, ...], x: Any) -> Any:
        name = path_of(path)
        if isinstance(x, Affine):
            return Affine(w=array(f"{name}/w", x.w, kernel="/blocks/" in name), b=array(f"{name}/b", x.b))
        return array(name, x)

    return jax.tree_util.tree_map_with_path(node, params, is_leaf=lambda x: isinstance(x, Affine))


def _jit(loss: Loss[BatchT, SumsT], finish: Finish[SumsT], place: Placement) -> Step[BatchT, SumsT]:
    mesh = place.mesh

    def sharded_loss(params: Tree, batch: BatchT, key: Key | None) -> SumsT:
        if mesh is None:
            return loss(params, batch, key)
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return loss(in_use(params, mesh, place.rules, place.layers_gather), batch, key)

    def first(params: Tree, batch: BatchT, key: Key | None) -> tuple[Tree, SumsT]:
        grads, sums = gradients(sharded_loss, weight_norm.merge(params), batch, key=key)
        return _placed(grads, place), sums

    return _compiled(first, finish, place)


def _shard_map(loss: Loss[BatchT, SumsT], finish: Finish[SumsT], place: Placement, mesh: Mesh) -> Step[BatchT, SumsT]:
    """Named collectives over `data`: parameters that it shards are gathered, and gradients summed."""
    alone = mesh.size == mesh.shape["data"]
    each = partial(jax.shard_map, mesh=mesh, axis_names=set(mesh.axis_names) if alone else {"data"}, check_vma=False)

    def specs(merged: Tree) -> Tree:
        """For each array how `data` shards it."""

        def over_data(path: tuple[Any, ...], x: Array) -> P:
            axes = sharding.spec(path_of(path), x.shape, mesh, cut=sharding.state_axis(mesh), rules=place.rules)
            return P(*(axis if axis == "data" else None for axis in axes))

        return jax.tree_util.tree_map_with_path(over_data, merged)

    def computed(merged: Tree, batch: BatchT, key: Key | None) -> tuple[Tree, SumsT]:
        """Gradients with respect to merged parameters and sums, with an axis [data] that is not summed."""
        cut = specs(merged)

        def local(merged: Tree, batch: BatchT, key: Key | None, first: Array) -> tuple[Tree, SumsT]:
            inside = jax.sharding.get_abstract_mesh()

            def sharded_loss(params: Tree, batch: BatchT, key: Key | None) -> SumsT:
                return loss(in_use(params, inside, place.rules, place.layers_gather), batch, key)

            batch = batch if alone else lax.with_sharding_constraint(batch, NamedSharding(inside, P("fsdp")))
            whole = jax.tree.map(partial(_gathered, place), merged, cut)
            found = gradients(sharded_loss, whole, batch, first=first[0], key=key)
            return jax.tree.map(lambda x: x[None], found)

        rows, count = len(jax.tree.leaves(batch)[0]), mesh.shape["data"]
        firsts = jnp.arange(count) * (rows // count)  # with other axes, XLA's partitioner has no `lax.axis_index`
        arguments = (cut, P("data"), P(), P("data"))
        found: tuple[Tree, SumsT] = each(local, in_specs=arguments, out_specs=P("data"))(merged, batch, key, firsts)
        return found

    def summed(total: tuple[Tree, SumsT]) -> tuple[Tree, SumsT]:
        cut = specs(jax.eval_shape(lambda grads: jax.tree.map(lambda x: x[0], grads), total[0]))

        def local(total: tuple[Tree, SumsT]) -> tuple[Tree, SumsT]:
            grads, sums = jax.tree.map(lambda x: x[0], total)
            return jax.tree.map(partial(_summed, place), grads, cut), lax.psum(sums, "data")

        found: tuple[Tree, SumsT] = each(local, in_specs=(P("data"),), out_specs=(cut, P()))(total)
        return found

    def first(params: Tree, batch: BatchT, key: Key | None) -> tuple[Tree, SumsT]:
        total = computed(weight_norm.merge(params), batch, key)
        if place.accumulates:
            return total
        grads, sums = summed(total)
        return _placed(grads, place), sums

    def finish_summed(state: TrainState, total: Any, rate: Array | None) -> tuple[TrainState, StepSums[SumsT]]:
        return finish(state, summed(total), rate)

    return _compiled(first, finish_summed if place.accumulates else finish, place)


def _gathered(place: Placement, shard: Array, cut: P) -> Array:
    """An array that `data` shards, whole along it."""
    if "data" not in cut:
        return shard
    sent = shard if place.layers_gather is None else shard.astype(place.layers_gather)
    whole: Array = lax.all_gather(sent, "data", axis=cut.index("data"), tiled=True).astype(shard.dtype)
    return whole


def _summed(place: Placement, gradient: Array, cut: Sequence[Any] = ()) -> Array:
    """The sum over `data`, of which a device gets its shard, or all if `data` does not shard it.

    XLA's CPU compiler makes sums in bfloat16 those in float32 of rounded numbers. It ends the process instead if the
    `shard_map` leaves an axis to the partitioner (jax 0.10 and 0.12), so that is written out here.
    """
    mesh, dtype = place.mesh, accumulation_dtype(gradient.dtype)
    sent = gradient.astype(jnp.bfloat16 if place.sum_dtype == "bfloat16" else dtype)
    if mesh is not None and mesh.size > mesh.shape["data"] and mesh.devices.flat[0].platform == "cpu":
        sent = sent.astype(dtype)
    if "data" not in cut:
        return lax.psum(sent, "data").astype(gradient.dtype)
    return lax.psum_scatter(sent, "data", scatter_dimension=cut.index("data"), tiled=True).astype(gradient.dtype)


def _pmap(loss: Loss[BatchT, SumsT], finish: Finish[SumsT], place: Placement) -> Step[BatchT, SumsT]:
    """Each device has its rows and all parameters. Raises UserError if the mesh or a rule shards parameters."""
    mesh = place.mesh
    check_pmap(mesh, place.rules)
    devices = jax.devices()[:1] if mesh is None else list(mesh.devices.flat)

    def local(params: Tree, batch: BatchT, key: Key | None) -> tuple[Tree, SumsT]:
        begin = lax.axis_index("data") * len(jax.tree.leaves(batch)[0])
        grads, sums = gradients(loss, weight_norm.merge(params), batch, first=begin, key=key)
        return jax.tree.map(partial(_summed, place), grads), lax.psum(sums, "data")

    def cut(batch: BatchT) -> BatchT:
        """[B, ...] -> [devices, B / devices, ...]. No data moves between devices."""
        return jax.tree.map(lambda x: x.reshape(len(devices), -1, *x.shape[1:]), batch)

    def public(x: Array) -> Array:
        """A replicated result as an array over all devices: that of pmap only covers the devices of this process."""
        if mesh is None or not mesh.is_multi_process:
            return x
        shards = [shard.data for shard in x.addressable_shards]
        return jax.make_array_from_single_device_arrays(x.shape, sharding.replicated(mesh), shards)

    computed = dispatch.pmap(local, axis_name="data", devices=devices, in_axes=(None, 0, None), out_axes=None)
    cut_compiled, add = dispatch.jit(cut), dispatch.jit(partial(jax.tree.map, jnp.add), donate_argnums=0)

    def first(params: Tree, batch: BatchT, key: Key | None) -> tuple[Tree, SumsT]:
        found: tuple[Tree, SumsT] = jax.tree.map(public, computed(params, cut_compiled(batch), key))
        return found

    return Step(
        first=first,
        add=lambda total, params, batch, key: add(total, first(params, batch, key)),
        finish=dispatch.jit(finish, donate_argnums=0),
    )


def check_pmap(mesh: Mesh | None, rules: Sequence[ShardingRule]) -> None:
    """Refuse sharding rules, and a mesh that shards parameters. Raises UserError."""
    check(not rules, "mesh.rules is set with parallel=pmap, which replicates all parameters; drop it, or use jit")
    if mesh is not None:
        sharding.check_mesh(mesh)
        for axis in ("fsdp", "tensor"):
            size = mesh.shape[axis]
            check(size == 1, f"mesh.{axis} is {size}, but parallel=pmap shards data only: use 1, or parallel=jit")


def _placed(tree: Tree, place: Placement) -> Tree:
    """Constrain arrays to the shardings that they have between updates."""
    if place.mesh is None:
        return tree
    return lax.with_sharding_constraint(tree, sharding.shardings(tree, place.mesh, rules=place.rules))


def _compiled(
    first: Callable[[Tree, BatchT, Key | None], tuple[Tree, SumsT]], finish: Finish[SumsT], place: Placement
) -> Step[BatchT, SumsT]:
    """The programs of an update that adds up what `first` returns for each batch."""

    def add(total: tuple[Tree, SumsT], params: Tree, batch: BatchT, key: Key | None) -> tuple[Tree, SumsT]:
        return jax.tree.map(jnp.add, total, first(params, batch, key))

    def finish_placed(
        state: TrainState, total: tuple[Tree, SumsT], rate: Array | None
    ) -> tuple[TrainState, StepSums[SumsT]]:
        after, report = finish(state, total, rate)
        return _placed(after, place), report

    return Step(
        first=dispatch.jit_with_barriers(first, place.mesh),
        add=dispatch.jit_with_barriers(add, place.mesh, donate_argnums=0),
        finish=dispatch.jit(finish_placed, donate_argnums=0),
    )
