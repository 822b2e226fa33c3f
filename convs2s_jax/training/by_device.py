"""Gradients by named exchanges: within `jax.shard_map`, each device computes those of its rows.

`summed` adds them up over the devices, layer by layer in the backward pass. `waiting` leaves them on each device, so
that those of several batches are added up before `arrived` exchanges the total. That is one exchange for each update,
and an array as large as all gradients on each device meanwhile: where `fsdp` cuts the state, gradients are summed over
`fsdp` at once, and only those over `data` wait.
"""

from collections.abc import Sequence
from typing import TypeVar

import jax
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from convs2s_jax.nn.types import Array, Key, Tree
from convs2s_jax.training import gathering, sharding
from convs2s_jax.training.gathering import SumDtype
from convs2s_jax.training.mesh import ROWS, ShardingRule
from convs2s_jax.training.step import B, Loss, S, merged_gradients

T = TypeVar("T")
LATE = "data"
"""The mesh axis over which gradients may wait to be summed."""


def summed(
    loss: Loss[B, S],
    merged: Tree,
    batch: B,
    key: Key | None,
    mesh: Mesh,
    dtype: SumDtype,
    rules: Sequence[ShardingRule] = (),
) -> tuple[Tree, S]:
    """Gradients with respect to merged parameters, and the sums of the loss, added up over all devices.

    Args:
      loss: of parameters as parts.
      merged: as `sharding.shardings` places them.
      batch: rows over `ROWS`.
      key: for dropout.
      mesh: whose axis `tensor` is 1.
      dtype: of sums of gradients over devices.
      rules: of `sharding.shardings`.
    """
    specs = _specs(merged, mesh, rules)
    ways = gathering.exchanges(specs, mesh, dtype)

    def local(merged: Tree, batch: B, key: Key | None) -> tuple[Tree, S]:
        def in_parts(params: Tree, batch: B, key: Key | None) -> S:
            return loss(gathering.exchanged(params, ways), batch, key)

        grads, sums = merged_gradients(in_parts, merged, batch, first=_first_row(batch), key=key)
        return grads, lax.psum(sums, ROWS)

    each = jax.shard_map(local, mesh=mesh, in_specs=(specs, P(ROWS), P()), out_specs=(specs, P()), check_vma=False)
    found: tuple[Tree, S] = each(merged, batch, key)
    return found


def waiting(
    loss: Loss[B, S],
    merged: Tree,
    batch: B,
    key: Key | None,
    mesh: Mesh,
    dtype: SumDtype,
    rules: Sequence[ShardingRule] = (),
) -> tuple[Tree, S]:
    """As `summed`, but for the sum over `data`: results have a leading axis, an entry for each device along it."""
    specs = _specs(merged, mesh, rules)
    ways = _early(specs, mesh, dtype)

    def local(merged: Tree, batch: B, key: Key | None) -> tuple[Tree, S]:
        def in_parts(slots: Tree, batch: B, key: Key | None) -> S:
            return loss(gathering.waiting(merged, slots, ways), batch, key)

        slots = gathering.slots(merged, ways)
        grads, sums = merged_gradients(in_parts, slots, batch, first=_first_row(batch), key=key)
        return _expanded((grads, lax.psum(sums, [axis for axis in ROWS if axis != LATE])))

    each = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(specs, P(ROWS), P()),
        out_specs=(_waiting_specs(specs, mesh), P(LATE)),
        check_vma=False,
    )
    found: tuple[Tree, S] = each(merged, batch, key)
    return found


def arrived(
    total: tuple[Tree, S], merged: Tree, mesh: Mesh, dtype: SumDtype, rules: Sequence[ShardingRule] = ()
) -> tuple[Tree, S]:
    """The sum over `data` of what `waiting` returned, or of several of those added up; `merged` for its shapes."""
    specs = _specs(merged, mesh, rules)
    ways = gathering.exchanges(specs, mesh, dtype, over=(LATE,))

    def local(total: tuple[Tree, S]) -> tuple[Tree, S]:
        grads, sums = jax.tree.map(lambda x: x[0], total)
        return jax.tree.map(lambda way, grad: way.scatter(grad), ways, grads), lax.psum(sums, LATE)

    each = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=((_waiting_specs(specs, mesh), P(LATE)),),
        out_specs=(specs, P()),
        check_vma=False,
    )
    found: tuple[Tree, S] = each(total)
    return found


def _specs(merged: Tree, mesh: Mesh, rules: Sequence[ShardingRule]) -> Tree:
    return jax.tree.map(lambda placed: placed.spec, sharding.shardings(merged, mesh, rules=rules))


def _early(specs: Tree, mesh: Mesh, dtype: SumDtype) -> Tree:
    """The exchanges that do not wait."""
    return gathering.exchanges(specs, mesh, dtype, over=tuple(axis for axis in ROWS if axis != LATE))


def _waiting_specs(specs: Tree, mesh: Mesh) -> Tree:
    """Of gradients that wait: what `data` cuts is whole on each device along it."""
    cut = sharding.state_axis(mesh)
    return jax.tree.map(
        lambda spec: P(LATE) if cut == LATE else P(LATE, *spec), specs, is_leaf=lambda x: isinstance(x, P)
    )


def _first_row(batch: Tree) -> Array:
    """The number of this device's first row in the whole batch."""
    return lax.axis_index(ROWS) * len(jax.tree.leaves(batch)[0])


def _expanded(tree: T) -> T:
    expanded: T = jax.tree.map(lambda x: x[None], tree)
    return expanded
