"""An update with pmap over the axis `data`: each device runs the program on its rows, with all parameters."""

from collections.abc import Sequence
from functools import partial

import jax
from jax import lax
from jax.sharding import Mesh

from convs2s_jax.core.config import check
from convs2s_jax.nn.types import Array, Key, Tree
from convs2s_jax.training import dispatch, sharding
from convs2s_jax.training.exchanges import ParamCollectives
from convs2s_jax.training.gathering import Exchange
from convs2s_jax.training.mesh import ShardingRule
from convs2s_jax.training.step import BatchT, Finish, Loss, Step, SumsT, gradients, tree_add


def steps(
    loss: Loss[BatchT, SumsT],
    finish: Finish[SumsT],
    mesh: Mesh | None,
    exchange: Exchange,
    rules: Sequence[ShardingRule],
) -> Step[BatchT, SumsT]:
    """The programs of an update; arguments as for `parallel.compile_steps`.

    Raises:
      UserError: a mesh that shards parameters.
    """
    check_rules(rules)
    devices = jax.devices()[:1] if mesh is None else list(mesh.devices.flat)
    for axis in ("fsdp", "tensor"):
        size = 1 if mesh is None else mesh.shape[axis]
        check(size == 1, f"mesh.{axis} is {size}, but parallel=pmap shards data only: use 1, or parallel=jit")
    each = partial(dispatch.pmap, axis_name="data", devices=devices)

    def cut(batch: BatchT) -> BatchT:
        """[B, ...] -> [devices, B / devices, ...]. No data moves between devices."""
        return jax.tree.map(lambda x: x.reshape(len(devices), -1, *x.shape[1:]), batch)

    def public(tree: Tree) -> Tree:
        """Replicated results as arrays over all devices, since those of pmap only cover the devices of this process."""
        return tree if mesh is None or not mesh.is_multi_process else jax.tree.map(partial(_of_all, mesh), tree)

    def local(params: Tree, batch: BatchT, key: Key | None) -> tuple[Tree, SumsT]:
        begin = lax.axis_index("data") * len(jax.tree.leaves(batch)[0])
        return gradients(loss, params, batch, first=begin, key=key)

    def reduced(total: tuple[Tree, SumsT]) -> tuple[Tree, SumsT]:
        collective = ParamCollectives("data", None, exchange.dtype, ("data",))
        return jax.tree.map(collective.scatter, total[0]), lax.psum(total[1], "data")

    cut_compiled, finish_compiled = dispatch.jit(cut), dispatch.jit(finish, donate_argnums=0)  # the same everywhere
    if exchange.reduce_once_per_update:
        own = each(local, in_axes=(None, 0, None), out_axes=0)
        more = each(tree_add, in_axes=0, out_axes=0, donate_argnums=0)
        exchanged = each(reduced, in_axes=0, out_axes=None)

        def first(params: Tree, batch: BatchT, key: Key | None) -> tuple[Tree, SumsT]:
            found: tuple[Tree, SumsT] = own(params, cut_compiled(batch), key)
            return found

        return Step(
            first=first,
            add=lambda total, params, batch, key: more(total, first(params, batch, key)),
            finish=lambda state, total, rate: finish_compiled(state, public(exchanged(total)), rate),
        )
    summed_compiled = each(
        lambda params, batch, key: reduced(local(params, batch, key)), in_axes=(None, 0, None), out_axes=None
    )
    add_compiled = dispatch.jit(tree_add, donate_argnums=0)

    def first_summed(params: Tree, batch: BatchT, key: Key | None) -> tuple[Tree, SumsT]:
        return public(summed_compiled(params, cut_compiled(batch), key))

    return Step(
        first=first_summed,
        add=lambda total, params, batch, key: add_compiled(total, first_summed(params, batch, key)),
        finish=finish_compiled,
    )


def check_rules(rules: Sequence[ShardingRule]) -> None:
    """Refuse all sharding rules. Raises UserError."""
    check(not rules, "mesh.rules is set with parallel=pmap, which replicates all parameters; drop it, or use jit")


def _of_all(mesh: Mesh, x: Array) -> Array:
    shards = [shard.data for shard in x.addressable_shards]
    return jax.make_array_from_single_device_arrays(x.shape, sharding.replicated(mesh), shards)
