"""Parameters as `ShardedParam`s that layers gather with named collectives, in a `jax.shard_map` over the axes of rows.

The axis `tensor` is left to XLA's partitioner there: it divides the products of a layer, and arrays are constrained to
the sharding in which the layer uses them.

As in `training.gathering`, the gradient of a full kernel comes back as that of the shard, summed over the rows of all
devices, or it stays on each device until those of several batches are accumulated.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from convs2s_jax.nn.sharded_params import ShardedParam
from convs2s_jax.nn.trees import path_of
from convs2s_jax.nn.types import Array, Tree, accumulation_dtype
from convs2s_jax.training import sharding
from convs2s_jax.training.gathering import Exchange, SumDtype, gathered, in_use, sum_dtype
from convs2s_jax.training.mesh import ROWS, ShardingRule


@dataclass(frozen=True)
class ParamCollectives:
    """The collectives of one parameter.

    Attributes:
      axis: mesh axis that shards the parameter.
      dim: axis of the array that it shards; None for an array that is not sharded.
      dtype: of the gradient reduction.
      over: mesh axes over which gradients are summed.
      use: how `tensor` shards the array in use; None if it has one device.
      early: whether it is gathered once, before the first layer.
      promoted: whether sums in bfloat16 are float32 in transit, as XLA's CPU compiler makes all of them. It does so by
        itself, but ends the process if a `shard_map` leaves an axis to the partitioner (jax 0.10 and 0.12).
    """

    axis: str
    dim: int | None
    dtype: SumDtype = "auto"
    over: tuple[str, ...] = ROWS
    use: P | None = None
    early: bool = False
    promoted: bool = False

    def __call__(self, value: Array, dtype: Any) -> Array:
        """The full array in this dtype."""
        return gathered(value, self, dtype)

    def gather(self, value: Array) -> Array:
        """The full array."""
        if self.dim is None:
            return in_use(value, self.use)
        gather = partial(lax.all_gather, axis_name=self.axis, axis=self.dim, tiled=True)
        return in_use(on_each_part(gather, value, self.parts), self.use)

    def scatter(self, gradient: Array) -> Array:
        """This device's shard of the sum over devices, in the dtype of the gradient."""
        dtype, axes = sum_dtype(gradient.dtype, self.dtype), self.over
        shard = in_use(gradient, self.use).astype(dtype)
        shard = shard.astype(accumulation_dtype(dtype)) if self.promoted else shard
        if self.dim is not None and self.axis in axes:
            scatter = partial(lax.psum_scatter, axis_name=self.axis, scatter_dimension=self.dim, tiled=True)
            shard = on_each_part(scatter, shard, self.parts)
            axes = tuple(axis for axis in axes if axis != self.axis)
        return (lax.psum(shard, axes) if axes else shard).astype(dtype).astype(gradient.dtype)

    @property
    def parts(self) -> P | None:
        """How `tensor` shards the array in use, for collectives on each part; None if it shards the same dimension."""
        return None if self.use is None or self.dim is None or self.use[self.dim] is not None else self.use

    @property
    def spec(self) -> P:
        """How `axis` shards the array."""
        return P() if self.dim is None else P(*[None] * self.dim, self.axis)


@dataclass(frozen=True)
class IntoSlot:
    """For gradients that stay on each device: those of (array, slot) go to the slot, not summed over `data`.

    Attributes:
      exchange: the other collectives: the gather, and sums over `fsdp`.
    """

    exchange: ParamCollectives

    def __call__(self, value: tuple[Array, Array], dtype: Any) -> Array:
        """The full array in this dtype."""
        return _gather_with_slot(*value, self.exchange, dtype)


def on_each_part(function: Callable[[Array], Array], value: Array, spec: P | None) -> Array:
    """Run a collective over rows on each shard of an array that `tensor` shards by this spec.

    Otherwise the partitioner would gather the array before a named collective, and shard it again afterwards.
    """
    if spec is None:
        return function(value)
    mesh = jax.sharding.get_abstract_mesh()
    inner = jax.shard_map(function, mesh=mesh, in_specs=(spec,), out_specs=spec, axis_names={"tensor"}, check_vma=False)
    result: Array = inner(value)
    return result


def param_collectives(
    merged: Tree, mesh: Mesh, exchange: Exchange, over: tuple[str, ...] = ROWS, *, rules: Sequence[ShardingRule] = ()
) -> Tree:
    """Return the named collectives of each merged parameter.

    Args:
      merged: parameters; shapes are enough.
      mesh: devices.
      exchange: the dtype of the gradient reduction, and when kernels are gathered.
      over: mesh axes over which gradients are summed.
      rules: of `sharding.shardings`.
    """
    axis = sharding.state_axis(mesh)

    def of_param(path: tuple[Any, ...], value: Array) -> ParamCollectives:
        name = path_of(path)
        whole, own = (sharding.spec(name, value.shape, mesh, cut=cut, rules=rules) for cut in (None, axis))
        sharded = [dim for dim, entry in enumerate(own) if axis in sharding.axes_of(entry)]
        use = whole if mesh.shape["tensor"] > 1 else None
        promoted = use is not None and mesh.devices.flat[0].platform == "cpu"
        dim = sharded[0] if sharded else None
        early = axis == "data"
        return ParamCollectives(axis, dim, exchange.dtype, over, use, early, promoted)

    return jax.tree_util.tree_map_with_path(of_param, merged)


def specs(collectives: Tree) -> Tree:
    """How the axis of rows that shards the state shards parameters."""
    return jax.tree.map(lambda collective: collective.spec, collectives)


def as_sharded_params(params: Tree, collectives: Tree) -> Tree:
    """Parameters as `ShardedParam`s."""

    def sharded(value: Array, collective: ParamCollectives) -> ShardedParam:
        return ShardedParam(value, collective, value.dtype, collective.early)

    return jax.tree.map(sharded, params, collectives)


def as_sharded_params_with_slots(params: Tree, slots: Tree, collectives: Tree) -> Tree:
    """As `as_sharded_params`, with gradients in the slots, which `slots` creates."""

    def sharded(value: Array, slot: Array, collective: ParamCollectives) -> ShardedParam:
        return ShardedParam((value, slot), IntoSlot(collective), value.dtype, collective.early)

    return jax.tree.map(sharded, params, slots, collectives)


def slots(params: Tree, collectives: Tree) -> Tree:
    """Zeros in the shapes of gradients that are summed over the axes `over` of these collectives only."""

    def zeros(value: Array, collective: ParamCollectives) -> Array:
        shape = list(value.shape)
        if collective.dim is not None and collective.axis not in collective.over:
            shape[collective.dim] *= lax.axis_size(collective.axis)
        return jnp.zeros(shape, value.dtype)

    return jax.tree.map(zeros, params, collectives)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _gather_with_slot(value: Array, slot: Array, collective: ParamCollectives, dtype: Any) -> Array:
    del slot  # takes the gradient
    return collective.gather(value.astype(dtype))


def _gather_with_slot_fwd(value: Array, slot: Array, collective: ParamCollectives, dtype: Any) -> tuple[Array, Array]:
    return _gather_with_slot(value, slot, collective, dtype), jnp.zeros((0,), slot.dtype)


def _gather_with_slot_bwd(
    collective: ParamCollectives, _dtype: Any, like: Array, gradient: Array
) -> tuple[None, Array]:
    return None, collective.scatter(gradient.astype(accumulation_dtype(gradient.dtype))).astype(like.dtype)


_gather_with_slot.defvjp(_gather_with_slot_fwd, _gather_with_slot_bwd)
