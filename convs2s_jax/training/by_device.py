"""Gradients with named collectives: in a `jax.shard_map` over `data` and `fsdp`, a device computes those of its rows.

With `tensor`, devices along that axis compute those of the same rows together, and XLA's partitioner divides the work.

`reduced_gradients` reduces them over the devices, layer by layer in the backward pass. `unreduced_gradients` leaves
them on each device, so that those of several batches can be accumulated before `reduce_over_data` sums the total over
devices. That needs only one reduction per update, but meanwhile an array as large as all gradients on each device. If
`fsdp` shards the state, gradients are reduced over `fsdp` immediately, and only the sum over `data` is deferred.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from convs2s_jax.nn.types import Array, Key, Tree
from convs2s_jax.training import exchanges, sharding
from convs2s_jax.training.gathering import Exchange
from convs2s_jax.training.mesh import ROWS, ShardingRule, row_shards
from convs2s_jax.training.step import BatchT, Loss, SumsT, merged_gradients

DEFERRED_AXIS = "data"
"""The mesh axis over which gradients may wait to be summed."""


def reduced_gradients(
    loss: Loss[BatchT, SumsT],
    merged: Tree,
    batch: BatchT,
    key: Key | None,
    mesh: Mesh,
    exchange: Exchange,
    rules: Sequence[ShardingRule] = (),
) -> tuple[Tree, SumsT]:
    """Return gradients with respect to merged parameters, and the sums of the loss, reduced over all devices.

    Args:
      loss: of parameters as `ShardedParam`s.
      merged: as `sharding.shardings` places them.
      batch: rows over `ROWS`.
      key: for dropout.
      mesh: devices.
      exchange: the dtype of the gradient reduction, and when kernels are gathered.
      rules: of `sharding.shardings`.
    """
    collectives = exchanges.param_collectives(merged, mesh, exchange, rules=rules)
    specs = exchanges.specs(collectives)

    def local(merged: Tree, batch: BatchT, key: Key | None, first: Array) -> tuple[Tree, SumsT]:
        def sharded_loss(params: Tree, batch: BatchT, key: Key | None) -> SumsT:
            return loss(exchanges.as_sharded_params(params, collectives), batch, key)

        grads, sums = merged_gradients(sharded_loss, merged, batch, first=first[0], key=key)
        return grads, lax.psum(sums, ROWS)

    places = (specs, P(ROWS), P(), P(ROWS))
    each = jax.shard_map(
        local, mesh=mesh, axis_names=_named(mesh), in_specs=places, out_specs=(specs, P()), check_vma=False
    )
    found: tuple[Tree, SumsT] = each(merged, batch, key, _first_rows(batch, mesh))
    return found


def unreduced_gradients(
    loss: Loss[BatchT, SumsT],
    merged: Tree,
    batch: BatchT,
    key: Key | None,
    mesh: Mesh,
    exchange: Exchange,
    rules: Sequence[ShardingRule] = (),
) -> tuple[Tree, SumsT]:
    """As `reduced_gradients`, but not summed over `data`: results have a leading axis, an entry per device along it."""
    at_once = tuple(axis for axis in ROWS if axis != DEFERRED_AXIS)
    collectives = exchanges.param_collectives(merged, mesh, exchange, at_once, rules=rules)
    specs = exchanges.specs(collectives)

    def local(merged: Tree, batch: BatchT, key: Key | None, first: Array) -> tuple[Tree, SumsT]:
        def sharded_loss(slots: Tree, batch: BatchT, key: Key | None) -> SumsT:
            return loss(exchanges.as_sharded_params_with_slots(merged, slots, collectives), batch, key)

        slots = exchanges.slots(merged, collectives)
        grads, sums = merged_gradients(sharded_loss, slots, batch, first=first[0], key=key)
        expanded: tuple[Tree, SumsT] = jax.tree.map(lambda x: x[None], (grads, lax.psum(sums, at_once)))
        return expanded

    each = jax.shard_map(
        local,
        mesh=mesh,
        axis_names=_named(mesh),
        in_specs=(specs, P(ROWS), P(), P(ROWS)),
        out_specs=(_unreduced_specs(specs, mesh), P(DEFERRED_AXIS)),
        check_vma=False,
    )
    found: tuple[Tree, SumsT] = each(merged, batch, key, _first_rows(batch, mesh))
    return found


def reduce_over_data(
    total: tuple[Tree, SumsT], merged: Tree, mesh: Mesh, exchange: Exchange, rules: Sequence[ShardingRule] = ()
) -> tuple[Tree, SumsT]:
    """Sum over `data` what `unreduced_gradients` returned, or a total of such results; `merged` gives the shapes."""
    collectives = exchanges.param_collectives(merged, mesh, exchange, (DEFERRED_AXIS,), rules=rules)
    specs = exchanges.specs(collectives)

    def local(total: tuple[Tree, SumsT]) -> tuple[Tree, SumsT]:
        grads, sums = jax.tree.map(lambda x: x[0], total)
        grads = jax.tree.map(lambda collective, grad: collective.scatter(grad), collectives, grads)
        return grads, lax.psum(sums, DEFERRED_AXIS)

    each = jax.shard_map(
        local,
        mesh=mesh,
        axis_names=_named(mesh),
        in_specs=((_unreduced_specs(specs, mesh), P(DEFERRED_AXIS)),),
        out_specs=(specs, P()),
        check_vma=False,
    )
    found: tuple[Tree, SumsT] = each(total)
    return found


def _unreduced_specs(specs: Tree, mesh: Mesh) -> Tree:
    """The specs of unreduced gradients: what `data` shards is unsharded on each device along it."""
    cut = sharding.state_axis(mesh)
    return jax.tree.map(
        lambda spec: P(DEFERRED_AXIS) if cut == DEFERRED_AXIS else P(DEFERRED_AXIS, *spec),
        specs,
        is_leaf=lambda x: isinstance(x, P),
    )


def _named(mesh: Mesh) -> set[str]:
    """The manual axes of a `shard_map`: all, except `tensor` if the partitioner has something to divide along it."""
    return set(mesh.axis_names if mesh.shape["tensor"] == 1 else ROWS)


def _first_rows(batch: Tree, mesh: Mesh) -> Array:
    """For each shard of the rows, the index of its first row, as an argument sharded over `ROWS`.

    XLA's partitioner does not support `lax.axis_index` if it handles other axes.
    """
    count = row_shards(mesh)
    return jnp.arange(count) * (len(jax.tree.leaves(batch)[0]) // count)
