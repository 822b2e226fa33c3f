"""Parameters as `nn.sharded_params.ShardedParam`s, which layers gather, for a program that XLA partitions.

The gradient of a full kernel comes back as that of the shard, summed over the rows of all devices: a reduce-scatter
for each all-gather. `training.exchanges` does the same with named collectives.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from convs2s_jax.nn.sharded_params import ShardedParam
from convs2s_jax.nn.trees import path_of
from convs2s_jax.nn.types import Array, Tree, accumulation_dtype
from convs2s_jax.training import sharding
from convs2s_jax.training.halves import Paired
from convs2s_jax.training.mesh import ROWS, ShardingRule, row_shards

SumDtype = Literal["auto", "float32", "bfloat16"]
"""The dtype of the gradient reduction over devices: "auto" leaves it to XLA in programs that XLA partitions, which sum
in the dtype of the products, and is float32 with named collectives."""


class Exchange(NamedTuple):
    """How gradients are summed over devices.

    Attributes:
      dtype: of the sums.
      reduce_once_per_update: whether each device accumulates its gradients of several batches before they are reduced
        over devices. `explicit` ignores it, and `jit` with `fsdp` uses it only if the mesh spans slices.
      gather_once: which kernels that `fsdp` shards are gathered once, before the first layer, like those sharded by
        `data`: the ends of their paths, as in `mesh.ShardingRule`; ("*",) for all, on meshes whose axis `fsdp` stands
        for `data` within a slice, and was not requested in order to save memory. `explicit` and `pmap` ignore it.
    """

    dtype: SumDtype = "auto"
    reduce_once_per_update: bool = False
    gather_once: tuple[str, ...] = ()


EACH_BATCH = Exchange()
"""Reduce for each batch, in the default dtype of each mode in `training.parallel`."""
NARROW = 32
"""Shards with fewer columns are gathered along a separate axis. In place, XLA's TPU compiler would sum whole arrays
padded to tiles, which sends several times the bytes."""


class Exchanger(Protocol):
    """How the shards of one parameter are communicated."""

    def gather(self, value: Array) -> Array:
        """Return the full array, from all shards."""

    def scatter(self, gradient: Array) -> Array:
        """Return this shard of a gradient of the full array, summed over rows, in the dtype of the gradient."""


@dataclass(frozen=True)
class Alone:
    """For one device, which has full arrays: no collectives and no constraints, which take time to trace."""

    def __call__(self, value: Array, dtype: Any) -> Array:
        """The array in this dtype."""
        return value.astype(dtype)


@dataclass(frozen=True)
class Constrained:
    """For `jit`: constrains the shardings of the array and its gradient, and XLA communicates shards.

    Attributes:
      used: sharding of the array in use.
      stored: sharding of the parameter and of its gradient.
      narrow: axis of the array that is split into narrow shards; None if shards are wide.
    """

    used: NamedSharding
    stored: NamedSharding
    narrow: int | None = None

    def __call__(self, value: Array, dtype: Any) -> Array:
        """The array in this dtype, not sharded by the state's axis."""
        return gathered(value, self, dtype)

    def gather(self, value: Array) -> Array:
        """The full array."""
        if self.narrow is None:
            return lax.with_sharding_constraint(value, self.used)
        axis, shape, entries = self.narrow, value.shape, list(self.used.spec)
        cut = self.stored.spec[axis]
        count = self.stored.mesh.shape[cut]
        parts = value.reshape(*shape[:axis], count, shape[axis] // count, *shape[axis + 1 :])
        parts = jnp.moveaxis(parts, axis, 0)
        for first in (cut, None):
            parts = lax.with_sharding_constraint(parts, NamedSharding(self.used.mesh, P(first, *entries)))
        return lax.with_sharding_constraint(jnp.moveaxis(parts, 0, axis).reshape(shape), self.used)

    def scatter(self, gradient: Array) -> Array:
        """This shard of the sum over rows, which XLA computes."""
        return lax.with_sharding_constraint(gradient, self.stored)


@dataclass(frozen=True)
class ConstrainedRows:
    """For `jit`: rows of a table [V, E] that is sharded along E, and perhaps over `tensor` along V.

    It sends rows, whereas `Constrained` sends the table.

    Attributes:
      table: the shardings of the table and its gradient.
    """

    table: Constrained

    def __call__(self, value: Array, indices: Array, dtype: Any) -> Array:
        """Return value[indices] for indices [B, T] whose rows are sharded over the mesh; rows are sent in this dtype.

        Each device looks up its columns for the rows of all devices that shard the table, and these are exchanged for
        all columns of its own rows. The backward pass does the same; there gradients add up in the dtype of the table.
        """
        mesh, cut = self.table.stored.mesh, self.table.stored.spec[1]
        if indices.size >= value.shape[0] * row_shards(mesh):
            return self.table(value, dtype).astype(value.dtype)[indices]
        rest = tuple(axis for axis in ROWS if axis != cut)
        indices = lax.with_sharding_constraint(indices, NamedSharding(mesh, P(rest)))
        value = lax.with_sharding_constraint(value, self.table.stored)  # and with it the gradient
        found = value[indices].astype(dtype)
        for spec in (P(rest, None, cut), P(ROWS)):
            found = lax.with_sharding_constraint(found, NamedSharding(mesh, spec))
        return found.astype(value.dtype)


def is_early(name: str, mesh: Mesh, exchange: Exchange) -> bool:
    """Whether a kernel is gathered once, before the first layer, instead of by its layer in both passes."""
    return sharding.state_axis(mesh) == "data" or sharding.ends_with_any(name, exchange.gather_once)


def constrained(params: Tree, mesh: Mesh, rules: Sequence[ShardingRule] = (), exchange: Exchange = EACH_BATCH) -> Tree:
    """Merged parameters as `ShardedParam`s, for a function that is compiled by `jit` for the mesh."""
    if mesh.size == 1:
        return jax.tree.map(lambda value: ShardedParam(value, Alone(), value.dtype, True), params)
    cut = sharding.state_axis(mesh)

    def sharded(path: tuple[Any, ...], value: Array) -> ShardedParam:
        name = path_of(path)
        early = is_early(name, mesh, exchange)
        whole, own = (sharding.spec(name, value.shape, mesh, cut=axis, rules=rules) for axis in (None, cut))
        if sharding.in_halves(name, value.shape, mesh, rules):
            whole, own = (P(*spec, None) for spec in (whole, own))
            return ShardedParam(value, Paired(mesh, placed(whole, own)), value.dtype, early)
        last = value.ndim - 1
        narrow = value.ndim > 1 and own[last] == cut and value.shape[last] < NARROW * mesh.shape[cut]
        collective = placed(whole, own, last if narrow else None)
        by_columns = own in (P(None, cut), P("tensor", cut))
        looked_up = name.endswith("embedding/table") and by_columns and not narrow
        return ShardedParam(value, collective, value.dtype, early, ConstrainedRows(collective) if looked_up else None)

    def placed(whole: P, own: P, narrow: int | None = None) -> Constrained:
        return Constrained(NamedSharding(mesh, whole), NamedSharding(mesh, own), narrow)

    return jax.tree_util.tree_map_with_path(sharded, params)


def in_use(whole: Array, spec: P | None) -> Array:
    """Shard an array over `tensor` by this spec where other axes are manual; None leaves it unchanged."""
    if spec is None:
        return whole
    return lax.with_sharding_constraint(whole, NamedSharding(jax.sharding.get_abstract_mesh(), spec))


def sum_dtype(dtype: Any, asked: SumDtype) -> Any:
    """The dtype in which arrays of this dtype are summed over devices: as requested, else float32 or better."""
    return jnp.bfloat16 if asked == "bfloat16" else accumulation_dtype(dtype)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def gathered(value: Array, exchanger: Exchanger, dtype: Any) -> Array:
    """The full array in this dtype; its gradient comes back as that of the shard."""
    return exchanger.gather(value.astype(dtype))


def _forward(value: Array, exchanger: Exchanger, dtype: Any) -> tuple[Array, Array]:
    return gathered(value, exchanger, dtype), jnp.zeros((0,), value.dtype)


def _backward(exchanger: Exchanger, _dtype: Any, like: Array, gradient: Array) -> tuple[Array]:
    """Scatter the gradient. A device contributes a bfloat16 gradient unrounded, whatever the dtype of the sum."""
    return (exchanger.scatter(gradient.astype(accumulation_dtype(gradient.dtype))).astype(like.dtype),)


gathered.defvjp(_forward, _backward)
