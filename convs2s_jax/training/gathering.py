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
from convs2s_jax.training.mesh import ShardingRule

SumDtype = Literal["auto", "float32", "bfloat16"]
"""The dtype of the gradient reduction over devices: "auto" leaves it to XLA in programs that XLA partitions, which sum
in the dtype of the products, and is float32 with named collectives."""


class Exchange(NamedTuple):
    """How gradients are summed over devices.

    Attributes:
      dtype: of the sums.
      reduce_once_per_update: whether each device accumulates its gradients of several batches before they are reduced
        over devices. `jit` with `fsdp` uses it only if the mesh spans slices.
    """

    dtype: SumDtype = "auto"
    reduce_once_per_update: bool = False


EACH_BATCH = Exchange()
"""Reduce for each batch, in the default dtype of each mode in `training.parallel`."""


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
    """

    used: NamedSharding
    stored: NamedSharding

    def __call__(self, value: Array, dtype: Any) -> Array:
        """The array in this dtype, not sharded by the state's axis."""
        return gathered(value, self, dtype)

    def gather(self, value: Array) -> Array:
        """The full array."""
        return lax.with_sharding_constraint(value, self.used)

    def scatter(self, gradient: Array) -> Array:
        """This shard of the sum over rows, which XLA computes."""
        return lax.with_sharding_constraint(gradient, self.stored)


def constrained(params: Tree, mesh: Mesh, rules: Sequence[ShardingRule] = ()) -> Tree:
    """Merged parameters as `ShardedParam`s, for a function that is compiled by `jit` for the mesh."""
    if mesh.size == 1:
        return jax.tree.map(lambda value: ShardedParam(value, Alone(), value.dtype, True), params)
    cut = sharding.state_axis(mesh)

    def sharded(path: tuple[Any, ...], value: Array) -> ShardedParam:
        used, stored = (
            NamedSharding(mesh, sharding.spec(path_of(path), value.shape, mesh, cut=axis, rules=rules))
            for axis in (None, cut)
        )
        return ShardedParam(value, Constrained(used, stored), value.dtype, cut == "data")

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
