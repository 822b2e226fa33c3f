"""Tensor parallelism: sharding of activation channels on a mesh with an axis `tensor`.

A layer keeps its output channels sharded. They are gathered where the next product sums over them, once for each block,
and the gradient of what was gathered is reduce-scattered. Without such an axis these functions do nothing. The mesh is
that of the program being traced (`jax.sharding.use_abstract_mesh`).
"""

from functools import partial

import jax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from convs2s_jax.nn.types import Array

AXIS = "tensor"


def shard_channels(x: Array) -> Array:
    """Shard x [..., C] and its gradient along C."""
    found = _shardings(x)
    return x if found is None else _constrained(x, found[0], found[0])


def replicate_channels(x: Array) -> Array:
    """Replicate all channels of x [..., C] and its gradient on each device (an all-reduce of partial sums)."""
    found = _shardings(x)
    return x if found is None else _constrained(x, found[1], found[1])


def all_gather_channels(x: Array) -> Array:
    """All-gather the channels of x [..., C] on each device. Its gradient is sharded along C by a reduce-scatter."""
    found = _shardings(x)
    return x if found is None else _constrained(x, found[1], found[0])


def _shardings(x: Array) -> tuple[NamedSharding, NamedSharding] | None:
    """Return the shardings with C sharded and with C replicated. Other axes are left to the partitioner."""
    mesh = jax.sharding.get_abstract_mesh()
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    if types.get(AXIS) != AxisType.Auto or mesh.shape[AXIS] == 1 or x.shape[-1] % mesh.shape[AXIS]:
        return None
    free = [P.UNCONSTRAINED] * (x.ndim - 1)
    return NamedSharding(mesh, P(*free, AXIS)), NamedSharding(mesh, P(*free, None))


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _constrained(x: Array, sharding: NamedSharding, _of_gradient: NamedSharding) -> Array:
    return jax.lax.with_sharding_constraint(x, sharding)


def _forward(x: Array, sharding: NamedSharding, of_gradient: NamedSharding) -> tuple[Array, None]:
    return _constrained(x, sharding, of_gradient), None


def _backward(_sharding: NamedSharding, of_gradient: NamedSharding, _: None, gradient: Array) -> tuple[Array]:
    return (jax.lax.with_sharding_constraint(gradient, of_gradient),)


_constrained.defvjp(_forward, _backward)
