"""Parameters as parts that layers make whole: `nn.parts.Part`s with the exchanges of a mesh.

The gradient of a whole kernel comes back as that of the part, summed over the rows of all devices: a reduce-scatter
where the gather is an all-gather. There are two forms, for the two ways of `training.parallel` that cut parameters, and
one whose gradients stay on each device until those of several batches are added up.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from convs2s_jax.nn.parts import Part
from convs2s_jax.nn.trees import path_of
from convs2s_jax.nn.types import Array, Tree, wide
from convs2s_jax.training import sharding
from convs2s_jax.training.halves import Paired
from convs2s_jax.training.mesh import ROWS, ShardingRule, row_shards

SumDtype = Literal["auto", "float32", "bfloat16"]
"""The dtype in which gradients are summed over devices: "auto" leaves it to XLA in programs that XLA partitions, which
sum in the dtype of the products, and is float32 where exchanges are named."""


class Exchange(NamedTuple):
    """How gradients are summed over devices.

    Attributes:
      dtype: of the sums.
      once: whether devices add up the gradients of several batches, each its own, before they are exchanged.
    """

    dtype: SumDtype = "auto"
    once: bool = False


EARLY = "data"
"""The mesh axis whose parts are made whole once: the axis `fsdp` is asked for where memory is short."""
EACH_BATCH = Exchange()
"""For each batch, in the dtype that the way chooses."""
NARROW = 32
"""Parts with fewer columns are gathered along an axis of their own. In place, XLA's TPU compiler would add up whole
arrays padded to tiles, which sends several times the bytes."""


@dataclass(frozen=True)
class Constrained:
    """For `jit`: says how the array and its gradient lie, and XLA exchanges parts.

    Attributes:
      whole: sharding of the array in use.
      part: sharding of the parameter and of its gradient.
      narrow: axis of the array that is cut into narrow parts; None where parts are wide.
    """

    whole: NamedSharding
    part: NamedSharding
    narrow: int | None = None

    def __call__(self, value: Array, dtype: Any) -> Array:
        """The array in this dtype, not cut by the state's axis."""
        return _gathered(value, self, dtype)

    def gather(self, value: Array) -> Array:
        """All parts."""
        if self.narrow is None:
            return lax.with_sharding_constraint(value, self.whole)
        axis, shape, entries = self.narrow, value.shape, list(self.whole.spec)
        cut = self.part.spec[axis]
        count = self.part.mesh.shape[cut]
        parts = value.reshape(*shape[:axis], count, shape[axis] // count, *shape[axis + 1 :])
        parts = jnp.moveaxis(parts, axis, 0)
        for first in (cut, None):
            parts = lax.with_sharding_constraint(parts, NamedSharding(self.whole.mesh, P(first, *entries)))
        return lax.with_sharding_constraint(jnp.moveaxis(parts, 0, axis).reshape(shape), self.whole)

    def scatter(self, gradient: Array) -> Array:
        """This part of the sum over rows, which XLA takes."""
        return lax.with_sharding_constraint(gradient, self.part)


@dataclass(frozen=True)
class ConstrainedRows:
    """For `jit`: rows of a table [V, E] that is cut along E. It sends rows, where `Constrained` sends the table.

    Attributes:
      table: how the table and its gradient lie.
    """

    table: Constrained

    def __call__(self, value: Array, indices: Array, dtype: Any) -> Array:
        """value[indices] for indices [B, T] whose rows are spread over the mesh; its rows are sent in this dtype.

        Each device finds its columns for the rows of all devices that cut the table, and these are exchanged for all
        columns of its own rows. In the backward pass as well; there gradients add up in the dtype of the table.
        """
        mesh, cut = self.table.part.mesh, self.table.part.spec[1]
        if indices.size >= value.shape[0] * row_shards(mesh):
            return self.table(value, dtype).astype(value.dtype)[indices]
        rest = tuple(axis for axis in ROWS if axis != cut)
        indices = lax.with_sharding_constraint(indices, NamedSharding(mesh, P(rest)))
        found = value[indices].astype(dtype)
        for spec in (P(rest, None, cut), P(ROWS)):
            found = lax.with_sharding_constraint(found, NamedSharding(mesh, spec))
        return found.astype(value.dtype)


@dataclass(frozen=True)
class Exchanged:
    """For `shard_map`: the exchanges by name.

    Attributes:
      axis: mesh axis that cuts the parameter.
      dim: axis of the array that it cuts; None for an array that each device has whole.
      dtype: of the sums of gradients.
      over: mesh axes over which gradients are summed.
    """

    axis: str
    dim: int | None
    dtype: SumDtype = "auto"
    over: tuple[str, ...] = ROWS

    def __call__(self, value: Array, dtype: Any) -> Array:
        """The array in this dtype, whole."""
        return _gathered(value, self, dtype)

    def gather(self, value: Array) -> Array:
        """All parts."""
        return value if self.dim is None else lax.all_gather(value, self.axis, axis=self.dim, tiled=True)

    def scatter(self, gradient: Array) -> Array:
        """This device's part of the sum over devices, in the dtype of the gradient."""
        part, axes = gradient.astype(sum_dtype(gradient.dtype, self.dtype)), self.over
        if self.dim is not None and self.axis in axes:
            part = lax.psum_scatter(part, self.axis, scatter_dimension=self.dim, tiled=True)
            axes = tuple(axis for axis in axes if axis != self.axis)
        return (lax.psum(part, axes) if axes else part).astype(gradient.dtype)


@dataclass(frozen=True)
class Waiting:
    """For gradients that wait on each device: those of a part (array, slot) go to the slot, not summed over `data`.

    Attributes:
      exchange: of everything else: the gather, and sums over `fsdp`.
    """

    exchange: Exchanged

    def __call__(self, value: tuple[Array, Array], dtype: Any) -> Array:
        """The array in this dtype, whole."""
        return _gathered_beside(*value, self.exchange, dtype)


def constrained(params: Tree, mesh: Mesh, rules: Sequence[ShardingRule] = ()) -> Tree:
    """Merged parameters as parts, for a function that is compiled by `jit` for the mesh."""
    cut = sharding.state_axis(mesh)
    early = cut == EARLY

    def part(path: tuple[Any, ...], value: Array) -> Part:
        name = path_of(path)
        whole, own = (sharding.spec(name, value.shape, mesh, cut=axis, rules=rules) for axis in (None, cut))
        if sharding.in_halves(name, value.shape, mesh, rules):
            whole, own = (P(*spec, None) for spec in (whole, own))
            return Part(value, Paired(mesh, placed(whole, own)), value.dtype, early)
        last = value.ndim - 1
        narrow = value.ndim > 1 and own[last] == cut and value.shape[last] < NARROW * mesh.shape[cut]
        way = placed(whole, own, last if narrow else None)
        looked_up = name.endswith("embedding/table") and own == P(None, cut) and not narrow and mesh.size > 1
        return Part(value, way, value.dtype, early, ConstrainedRows(way) if looked_up else None)

    def placed(whole: P, own: P, narrow: int | None = None) -> Constrained:
        return Constrained(NamedSharding(mesh, whole), NamedSharding(mesh, own), narrow)

    return jax.tree_util.tree_map_with_path(part, params)


def exchanges(specs: Tree, mesh: Mesh, dtype: SumDtype, over: tuple[str, ...] = ROWS) -> Tree:
    """For each array, how it is exchanged by name within a `shard_map` over the mesh that has cut it by these specs."""
    axis = sharding.state_axis(mesh)

    def way(spec: P) -> Exchanged:
        places = [
            dim for dim, names in enumerate(spec) if names == axis or (isinstance(names, tuple) and axis in names)
        ]
        return Exchanged(axis, places[0] if places else None, dtype, over)

    return jax.tree.map(way, specs, is_leaf=lambda x: isinstance(x, P))


def exchanged(params: Tree, ways: Tree) -> Tree:
    """Merged parameters as parts, within a `shard_map`; `ways` as `exchanges` returns them."""
    return jax.tree.map(lambda value, way: Part(value, way, value.dtype, way.axis == EARLY), params, ways)


def waiting(params: Tree, slots: Tree, ways: Tree) -> Tree:
    """As `exchanged`, with gradients in the slots: arrays such as `slots` makes."""

    def part(value: Array, slot: Array, way: Exchanged) -> Part:
        return Part((value, slot), Waiting(way), value.dtype, way.axis == EARLY)

    return jax.tree.map(part, params, slots, ways)


def slots(params: Tree, ways: Tree) -> Tree:
    """Zeros in the shapes of gradients that are summed over the axes `over` of these ways only."""

    def zeros(value: Array, way: Exchanged) -> Array:
        shape = list(value.shape)
        if way.dim is not None and way.axis not in way.over:
            shape[way.dim] *= lax.axis_size(way.axis)
        return jnp.zeros(shape, value.dtype)

    return jax.tree.map(zeros, params, ways)


def sum_dtype(dtype: Any, asked: SumDtype) -> Any:
    """The dtype in which arrays of this dtype are summed over devices: that asked for, else float32 or better."""
    return jnp.bfloat16 if asked == "bfloat16" else wide(dtype)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _gathered(value: Array, way: Constrained | Exchanged, dtype: Any) -> Array:
    return way.gather(value.astype(dtype))


def _forward(value: Array, way: Constrained | Exchanged, dtype: Any) -> tuple[Array, Array]:
    return _gathered(value, way, dtype), jnp.zeros((0,), value.dtype)


def _backward(way: Constrained | Exchanged, _dtype: Any, like: Array, gradient: Array) -> tuple[Array]:
    """Of a gradient in bfloat16, each device's summand is that number whatever the dtype of the sum."""
    return (way.scatter(gradient.astype(wide(gradient.dtype))).astype(like.dtype),)


_gathered.defvjp(_forward, _backward)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _gathered_beside(value: Array, slot: Array, way: Exchanged, dtype: Any) -> Array:
    del slot  # takes the gradient
    return way.gather(value.astype(dtype))


def _forward_beside(value: Array, slot: Array, way: Exchanged, dtype: Any) -> tuple[Array, Array]:
    return _gathered_beside(value, slot, way, dtype), jnp.zeros((0,), slot.dtype)


def _backward_beside(way: Exchanged, _dtype: Any, like: Array, gradient: Array) -> tuple[None, Array]:
    return None, way.scatter(gradient.astype(wide(gradient.dtype))).astype(like.dtype)


_gathered_beside.defvjp(_forward_beside, _backward_beside)
