"""Gradients by named exchanges: within a `jax.shard_map` over `data` and `fsdp`, a device computes those of its rows.

With `tensor`, devices along that axis compute those of the same rows together, and XLA's partitioner divides the work.

`summed` adds them up over the devices, layer by layer in the backward pass. `unreduced` leaves them on each device, so
that those of several batches are added up before `reduced` sums the total over devices. That is one exchange for each
update, and an array as large as all gradients on each device meanwhile: where `fsdp` shards the state, gradients are
summed over `fsdp` at once, and only the sum over `data` is put off.
"""

from collections.abc import Sequence
from typing import TypeVar

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

T = TypeVar("T")
LATE = "data"
"""The mesh axis over which gradients may wait to be summed."""


def summed(
    loss: Loss[BatchT, SumsT],
    merged: Tree,
    batch: BatchT,
    key: Key | None,
    mesh: Mesh,
    exchange: Exchange,
    rules: Sequence[ShardingRule] = (),
) -> tuple[Tree, SumsT]:
    """Gradients with respect to merged parameters, and the sums of the loss, added up over all devices.

    Args:
      loss: of parameters as `ShardedParam`s.
      merged: as `sharding.shardings` places them.
      batch: rows over `ROWS`.
      key: for dropout.
      mesh: devices.
      exchange: the dtype of sums of gradients over devices, and when kernels are gathered.
      rules: of `sharding.shardings`.
    """
    ways = exchanges.of_parameters(merged, mesh, exchange, rules=rules)
    specs = exchanges.specs(ways)

    def local(merged: Tree, batch: BatchT, key: Key | None, first: Array) -> tuple[Tree, SumsT]:
        def sharded_loss(params: Tree, batch: BatchT, key: Key | None) -> SumsT:
            return loss(exchanges.exchanged(params, ways), batch, key)

        grads, sums = merged_gradients(sharded_loss, merged, batch, first=first[0], key=key)
        return grads, lax.psum(sums, ROWS)

    places = (specs, P(ROWS), P(), P(ROWS))
    each = jax.shard_map(
        local, mesh=mesh, axis_names=_named(mesh), in_specs=places, out_specs=(specs, P()), check_vma=False
    )
    grads, sums = each(exchanges.grouped(merged, ways), batch, key, _first_rows(batch, mesh))
    return exchanges.joined(grads, ways), sums


def unreduced(
    loss: Loss[BatchT, SumsT],
    merged: Tree,
    batch: BatchT,
    key: Key | None,
    mesh: Mesh,
    exchange: Exchange,
    rules: Sequence[ShardingRule] = (),
) -> tuple[Tree, SumsT]:
    """As `summed`, but for the sum over `data`: results have a leading axis, an entry for each device along it.

    Gradients are `exchanges.grouped`, so that they lie over `tensor` and over `fsdp` alike.
    """
    at_once = tuple(axis for axis in ROWS if axis != LATE)
    ways = exchanges.of_parameters(merged, mesh, exchange, at_once, rules=rules)
    specs = exchanges.specs(ways)

    def local(merged: Tree, batch: BatchT, key: Key | None, first: Array) -> tuple[Tree, SumsT]:
        def sharded_loss(slots: Tree, batch: BatchT, key: Key | None) -> SumsT:
            return loss(exchanges.exchanged_into_slots(merged, slots, ways), batch, key)

        slots = exchanges.slots(merged, ways)
        grads, sums = merged_gradients(sharded_loss, slots, batch, first=first[0], key=key)
        return _expanded((grads, lax.psum(sums, at_once)))

    each = jax.shard_map(
        local,
        mesh=mesh,
        axis_names=_named(mesh),
        in_specs=(specs, P(ROWS), P(), P(ROWS)),
        out_specs=(_unreduced_specs(specs, mesh), P(LATE)),
        check_vma=False,
    )
    found: tuple[Tree, SumsT] = each(exchanges.grouped(merged, ways), batch, key, _first_rows(batch, mesh))
    return found


def reduced(
    total: tuple[Tree, SumsT], merged: Tree, mesh: Mesh, exchange: Exchange, rules: Sequence[ShardingRule] = ()
) -> tuple[Tree, SumsT]:
    """The sum over `data` of what `unreduced` returned, or of several of those added up; `merged` for its shapes."""
    ways = exchanges.of_parameters(merged, mesh, exchange, (LATE,), rules=rules)
    specs = exchanges.specs(ways)

    def local(total: tuple[Tree, SumsT]) -> tuple[Tree, SumsT]:
        grads, sums = jax.tree.map(lambda x: x[0], total)
        return jax.tree.map(lambda way, grad: way.scatter_grouped(grad), ways, grads), lax.psum(sums, LATE)

    each = jax.shard_map(
        local,
        mesh=mesh,
        axis_names=_named(mesh),
        in_specs=((_unreduced_specs(specs, mesh), P(LATE)),),
        out_specs=(specs, P()),
        check_vma=False,
    )
    grads, sums = each(total)
    return exchanges.joined(grads, ways), sums


def _unreduced_specs(specs: Tree, mesh: Mesh) -> Tree:
    """Of unreduced gradients: what `data` shards is unsharded on each device along it."""
    cut = sharding.state_axis(mesh)
    return jax.tree.map(
        lambda spec: P(LATE) if cut == LATE else P(LATE, *spec), specs, is_leaf=lambda x: isinstance(x, P)
    )


def _named(mesh: Mesh) -> set[str]:
    """The axes of a `shard_map`: all, but for `tensor` where the partitioner has something to divide along it."""
    return set(mesh.axis_names if mesh.shape["tensor"] == 1 else ROWS)


def _first_rows(batch: Tree, mesh: Mesh) -> Array:
    """For each part of the rows the number of its first one, an argument cut over `ROWS`.

    XLA's partitioner has no `lax.axis_index` where other axes are its own.
    """
    count = row_shards(mesh)
    return jnp.arange(count) * (len(jax.tree.leaves(batch)[0]) // count)


def _expanded(tree: T) -> T:
    expanded: T = jax.tree.map(lambda x: x[None], tree)
    return expanded
