"""Layers on a mesh: kernels that devices store in shards, and channels of activations that stay sharded.

The mesh is that of the program being traced (`jax.sharding.use_abstract_mesh`). Without one, arrays are whole, and
these functions do nothing.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.typing import DTypeLike

from convs2s_jax.nn import struct
from convs2s_jax.nn.types import Array, accumulation_dtype

F = TypeVar("F", bound=Callable[..., Array])
AXIS = "tensor"


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def gather(shards: Array, used: NamedSharding, stored: NamedSharding, dtype: DTypeLike) -> Array:
    """All-gather an array in `dtype`: sharded as `used`. Its gradient is summed, and sharded as `stored`.

    That is a reduce-scatter (fully sharded data parallelism, Zhao et al. 2023). A device contributes a bfloat16
    gradient unrounded.
    """
    del stored
    return jax.lax.with_sharding_constraint(shards.astype(dtype), used)


def _gather_forward(shards: Array, used: NamedSharding, stored: NamedSharding, dtype: DTypeLike) -> tuple[Array, Array]:
    return gather(shards, used, stored, dtype), jnp.zeros((0,), shards.dtype)


def _gather_backward(
    _used: NamedSharding, stored: NamedSharding, _dtype: DTypeLike, like: Array, gradient: Array
) -> tuple[Array]:
    gradient = gradient.astype(accumulation_dtype(gradient.dtype))
    return (jax.lax.with_sharding_constraint(gradient, stored).astype(like.dtype),)


gather.defvjp(_gather_forward, _gather_backward)


@struct.dataclass
class ShardedKernel:
    """A kernel of which each device stores a shard between its uses.

    Layers that are decorated with `gathers_kernel` gather it in the forward pass, and again in the backward pass.
    Functions of `jax.numpy` gather it too, and keep the whole kernel for the backward pass.

    Attributes:
      value: the array.
      used: its sharding in use.
      stored: its sharding otherwise, and that of its gradient.
      dtype: dtype of the gathered kernel.
    """

    value: Array
    used: NamedSharding = struct.field(pytree_node=False)
    stored: NamedSharding = struct.field(pytree_node=False)
    dtype: Any = struct.field(pytree_node=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the kernel."""
        return self.value.shape

    def astype(self, dtype: DTypeLike) -> "ShardedKernel":
        """Return the same kernel, to be gathered in another dtype."""
        return dataclasses.replace(self, dtype=dtype)

    def __jax_array__(self) -> Array:
        """Gather the kernel."""
        return gather(self.value, self.used, self.stored, self.dtype)


def gathers_kernel(layer: F) -> F:
    """Decorator of a layer (params, x, ...), whose `params.w` may be a `ShardedKernel`."""

    @functools.wraps(layer)
    def apply(params: Any, x: Array, *rest: Any, **options: Any) -> Array:
        if not isinstance(params.w, ShardedKernel):
            return layer(params, x, *rest, **options)

        @jax.checkpoint
        def gathered(params: Any, x: Array) -> Array:
            return layer(dataclasses.replace(params, w=jnp.asarray(params.w)), x, *rest, **options)

        return gathered(params, x)

    layer_that_gathers: Any = apply
    return layer_that_gathers


def shard_channels(x: Array) -> Array:
    """Shard x [..., C] and its gradient along C over `tensor`.

    A layer keeps its output channels sharded. They are gathered where the next product sums over them, once for each
    block, and the gradient of what was gathered is reduce-scattered.
    """
    return _constrain(x, AXIS, AXIS)


def replicate_channels(x: Array) -> Array:
    """Replicate all channels of x [..., C] and its gradient on each device (an all-reduce of partial sums)."""
    return _constrain(x, None, None)


def all_gather_channels(x: Array) -> Array:
    """All-gather the channels of x [..., C] on each device. Its gradient is sharded along C by a reduce-scatter."""
    return _constrain(x, None, AXIS)


def _constrain(x: Array, *axes: str | None) -> Array:
    """Shard C of x and of its gradient over these mesh axes. Other axes of x are left to the partitioner."""
    mesh = jax.sharding.get_abstract_mesh()
    types = dict(zip(mesh.axis_names, mesh.axis_types, strict=True))
    if types.get(AXIS) != AxisType.Auto or mesh.shape[AXIS] == 1 or x.shape[-1] % mesh.shape[AXIS]:
        return x
    used, stored = (NamedSharding(mesh, P(*[P.UNCONSTRAINED] * (x.ndim - 1), axis)) for axis in axes)
    return gather(x, used, stored, x.dtype)
