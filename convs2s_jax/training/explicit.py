"""Gradients with shardings in types: `jax.sharding.AxisType.Explicit` over the axes that shard rows.

Within `typed`, every array's type states along which of these axes it is sharded, and JAX refuses operations for which
that does not determine the result. Batches get a leading axis of the shards of the rows. It is sharded, and `jax.vmap`
maps the loss over it. So the loss sees the rows of one shard, as on one device, and types follow by themselves. The
axis `tensor` is left to XLA: its partitioner divides layers along it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from convs2s_jax.core.errors import UserError
from convs2s_jax.nn.sharded_params import ShardedParam
from convs2s_jax.nn.trees import path_of
from convs2s_jax.nn.types import Array, Key, Tree
from convs2s_jax.training import sharding
from convs2s_jax.training.gathering import in_use
from convs2s_jax.training.halves import Paired
from convs2s_jax.training.mesh import ROWS, ShardingRule, row_shards

BatchT = TypeVar("BatchT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Typed:
    """For `explicit`: gathers an array by changing its type; the transpose shards the gradient.

    Attributes:
      use: how `tensor`, which is not part of types, shards the array in use; None if it has one device.
    """

    use: P | None = None

    def __call__(self, value: Array, dtype: Any) -> Array:
        """The array in this dtype, not sharded along the axes of types."""
        return in_use(jax.sharding.reshard(value.astype(dtype), P()), self.use)


def sharded_loss(
    loss: Callable[[Tree, BatchT, Key | None], ResultT], mesh: Mesh, rules: Sequence[ShardingRule] = ()
) -> Callable[[Tree, BatchT, Key | None], ResultT]:
    """Return the loss of a batch within `typed`: of sharded parameters, mapped over the shards of the rows."""
    count = row_shards(mesh)

    def sharded(path: tuple[Any, ...], value: Array) -> ShardedParam:
        name = path_of(path)
        use = sharding.spec(name, value.shape, mesh, rules=rules) if mesh.shape["tensor"] > 1 else None
        if use is not None and sharding.in_halves(name, value.shape, mesh, rules):
            return ShardedParam(value, Paired(mesh, Typed(P(*use, None))), value.dtype)
        return ShardedParam(value, Typed(use), value.dtype)

    def cut(x: Array) -> Array:
        """[B, ...] -> [shards, B / shards, ...]: no data moves between devices."""
        return lax.reshape(x, (count, x.shape[0] // count, *x.shape[1:]), out_sharding=P(ROWS))

    def summed(params: Tree, batch: BatchT, key: Key | None) -> ResultT:
        held = jax.tree_util.tree_map_with_path(sharded, params)
        if key is None:
            each = jax.vmap(lambda rows: loss(held, rows, None))(jax.tree.map(cut, batch))
        else:  # reshaping typed keys has no `out_sharding`
            words = cut(jax.sharding.reshard(jax.random.key_data(key), P(ROWS)))
            impl = jax.random.key_impl(key)
            mapped = jax.vmap(lambda rows, words: loss(held, rows, jax.random.wrap_key_data(words, impl=impl)))
            each = mapped(jax.tree.map(cut, batch), words)
        total: ResultT = jax.tree.map(partial(jnp.sum, axis=0), each)
        return total

    return summed


def typed(
    function: Callable[[Tree, BatchT, Key | None], tuple[Tree, ResultT]], mesh: Mesh, rules: Sequence[ShardingRule]
) -> Callable[[Tree, BatchT, Key | None], tuple[Tree, ResultT]]:
    """Wrap a function of merged parameters, a batch and a key, so that it runs with shardings in types.

    The program that calls the wrapped function has no shardings in its types.

    Raises:
      UserError: at tracing, if JAX finds no sharding for a result of the function.
    """

    def called(merged: Tree, batch: BatchT, key: Key | None) -> tuple[Tree, ResultT]:
        specs = sharding.row_specs(merged, mesh, rules)
        places = (specs, jax.tree.map(lambda _: P(ROWS), batch), jax.tree.map(lambda _: P(), key))
        try:
            with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
                found: tuple[Tree, ResultT] = jax.sharding.explicit_axes(function, axes=ROWS, in_sharding=places)(
                    merged, batch, key
                )
                return found
        except Exception as error:
            if type(error).__name__ != "ShardingTypeError":  # JAX does not export it
                raise
            reason = str(error).splitlines()[0]
            raise UserError(
                f"parallel is 'explicit', which cannot train this model; use jit. JAX reports: {reason}"
            ) from error

    return called
