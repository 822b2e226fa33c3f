"""Sharding of the channels of activations on a mesh with an axis `tensor` (tensor parallelism).

A layer keeps its output channels cut. They are gathered where the next product sums over them, once for each block, and
the gradient of what was gathered is summed into the cut again. Without such an axis these functions change nothing:
the mesh is that of the program being traced (`jax.sharding.use_abstract_mesh`).
"""

from functools import partial

import jax
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from convs2s_jax.nn.types import Array

AXIS = "tensor"


def cut(x: Array) -> Array:
    """x [..., C] and its gradient cut along C."""
    places = _places(x)
    return x if places is None else _placed(x, places[0], places[0])


def whole(x: Array) -> Array:
    """x [..., C] and its gradient with all channels on each device: of parts of a sum, the sum."""
    places = _places(x)
    return x if places is None else _placed(x, places[1], places[1])


def gathered(x: Array) -> Array:
    """x [..., C] with all channels on each device. Its gradient is cut along C: an all-gather, and a reduce-scatter."""
    places = _places(x)
    return x if places is None else _placed(x, places[1], places[0])


def _places(x: Array) -> tuple[NamedSharding, NamedSharding] | None:
    """The shardings with C cut and whole, whose other axes are left to the partitioner."""
    mesh = jax.sharding.get_abstract_mesh()
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    if types.get(AXIS) != AxisType.Auto or mesh.shape[AXIS] == 1 or x.shape[-1] % mesh.shape[AXIS]:
        return None
    free = [P.UNCONSTRAINED] * (x.ndim - 1)
    return NamedSharding(mesh, P(*free, AXIS)), NamedSharding(mesh, P(*free, None))


@partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _placed(x: Array, place: NamedSharding, _of_gradient: NamedSharding) -> Array:
    return jax.lax.with_sharding_constraint(x, place)


def _forward(x: Array, place: NamedSharding, of_gradient: NamedSharding) -> tuple[Array, None]:
    return _placed(x, place, of_gradient), None


def _backward(_place: NamedSharding, of_gradient: NamedSharding, _: None, gradient: Array) -> tuple[Array]:
    return (jax.lax.with_sharding_constraint(gradient, of_gradient),)


_placed.defvjp(_forward, _backward)
