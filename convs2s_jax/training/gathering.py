"""Parameters as parts that layers make whole: `nn.parts.Part`s with the exchanges of a mesh.

The gradient of a whole kernel comes back as that of the part, summed over the rows of all devices: a reduce-scatter
where the gather is an all-gather. There are two forms, for the two ways of `training.parallel` that cut parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

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
from convs2s_jax.training.mesh import ROWS, ShardingRule


@dataclass(frozen=True)
class Constrained:
    """For `jit`: says how the array and its gradient lie, and XLA exchanges parts.

    Attributes:
      whole: sharding of the array in use.
      part: sharding of the parameter and of its gradient.
    """

    whole: NamedSharding
    part: NamedSharding

    def __call__(self, value: Array, dtype: Any) -> Array:
        """The array in this dtype, not cut by the state's axis."""
        return _gathered(value, self, dtype)

    def gather(self, value: Array) -> Array:
        """All parts."""
        return lax.with_sharding_constraint(value, self.whole)

    def scatter(self, gradient: Array) -> Array:
        """This part of the sum over rows, which XLA takes."""
        return lax.with_sharding_constraint(gradient, self.part)


@dataclass(frozen=True)
class Exchanged:
    """For `shard_map`: the exchanges by name.

    Attributes:
      axis: mesh axis that cuts the parameter.
      dim: axis of the array that it cuts; None for an array that each device has whole.
    """

    axis: str
    dim: int | None

    def __call__(self, value: Array, dtype: Any) -> Array:
        """The array in this dtype, whole."""
        return _gathered(value, self, dtype)

    def gather(self, value: Array) -> Array:
        """All parts."""
        return value if self.dim is None else lax.all_gather(value, self.axis, axis=self.dim, tiled=True)

    def scatter(self, gradient: Array) -> Array:
        """This device's part of the sum over devices."""
        if self.dim is None:
            return lax.psum(gradient, ROWS)
        part = lax.psum_scatter(gradient, self.axis, scatter_dimension=self.dim, tiled=True)
        return lax.psum(part, tuple(axis for axis in ROWS if axis != self.axis))


def constrained(params: Tree, mesh: Mesh, rules: Sequence[ShardingRule] = ()) -> Tree:
    """Merged parameters as parts, for a function that is compiled by `jit` for the mesh."""
    cut = sharding.state_axis(mesh)

    def part(path: tuple[Any, ...], value: Array) -> Part:
        name = path_of(path)
        whole, own = (sharding.spec(name, value.shape, mesh, cut=axis, rules=rules) for axis in (None, cut))
        if sharding.in_halves(name, value.shape, mesh, rules):
            whole, own = (P(*spec, None) for spec in (whole, own))
            return Part(value, Paired(mesh, placed(whole, own)), value.dtype)
        return Part(value, placed(whole, own), value.dtype)

    def placed(whole: P, own: P) -> Constrained:
        return Constrained(NamedSharding(mesh, whole), NamedSharding(mesh, own))

    return jax.tree_util.tree_map_with_path(part, params)


def exchanged(params: Tree, specs: Tree, mesh: Mesh) -> Tree:
    """Merged parameters as parts, within a `shard_map` over the mesh that has cut them by these specs."""
    axis = sharding.state_axis(mesh)

    def part(value: Array, spec: P) -> Part:
        places = [
            dim for dim, names in enumerate(spec) if names == axis or (isinstance(names, tuple) and axis in names)
        ]
        return Part(value, Exchanged(axis, places[0] if places else None), value.dtype)

    return jax.tree.map(part, params, specs)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _gathered(value: Array, way: Constrained | Exchanged, dtype: Any) -> Array:
    return way.gather(value.astype(dtype))


def _forward(value: Array, way: Constrained | Exchanged, dtype: Any) -> tuple[Array, Array]:
    return _gathered(value, way, dtype), jnp.zeros((0,), value.dtype)


def _backward(way: Constrained | Exchanged, _dtype: Any, like: Array, gradient: Array) -> tuple[Array]:
    """Sums over devices are taken in float32 or better, also of gradients in bfloat16."""
    return (way.scatter(gradient.astype(wide(gradient.dtype))).astype(like.dtype),)


_gathered.defvjp(_forward, _backward)
