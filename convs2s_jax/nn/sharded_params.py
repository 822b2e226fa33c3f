"""Fully sharded parameters (FSDP), gathered before the first layer or by the layers that use them.

On a mesh that shards parameters (fully sharded data parallelism, Zhao et al. 2023), the training step passes
`ShardedParam`s to the layers instead of arrays. Layers that run one after another call `gather` on their parameters
first, so that only the kernels of the running layers are in memory. `early` parameters are gathered before the first
layer. This costs memory but saves the second gather, for the backward pass. Outside such a step, parameters are arrays,
and `gather` does nothing.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import jax
from jax.typing import DTypeLike

from convs2s_jax.nn import struct
from convs2s_jax.nn.types import Array

T = TypeVar("T")
Gather = Callable[[Any, Any], Array]
"""(shard of this device, dtype) -> the full array in this dtype. Equal functions compare equal, so that layers can be
stacked. The gradient of the full array is returned as that of the shard, summed over devices."""


@struct.dataclass
class ShardedParam:
    """A shard of an array, and how to gather the full array.

    Attributes:
      value: the shard of this device, as `gather` expects it.
      gather: returns the full array.
      dtype: dtype of the full array.
      early: whether it is gathered once, before the first layer, and not by the layer that uses it.
    """

    value: Any
    gather: Gather = struct.field(pytree_node=False)
    dtype: DTypeLike = struct.field(pytree_node=False)
    early: bool = struct.field(pytree_node=False, default=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the full array."""
        return tuple(jax.eval_shape(lambda value: self.gather(value, self.dtype), self.value).shape)

    def astype(self, dtype: DTypeLike) -> "ShardedParam":
        """Return the same shard with another dtype of the full array. The shard is converted before it is gathered."""
        return dataclasses.replace(self, dtype=dtype)


def is_sharded(x: Any) -> bool:
    """Whether a tree node is a `ShardedParam`."""
    return isinstance(x, ShardedParam)


def gathered_by_layer(name: str) -> bool:
    """Whether a parameter with this path is gathered by its layer, unless it is `early`; the others are before."""
    return "/blocks/" in name


def gather(params: T) -> T:
    """Gather every `ShardedParam` of the parameters."""
    gathered: T = jax.tree.map(lambda x: x.gather(x.value, x.dtype) if is_sharded(x) else x, params, is_leaf=is_sharded)
    return gathered


def any_sharded(params: Any) -> bool:
    """Whether any of the parameters is a `ShardedParam`."""
    return any(is_sharded(x) for x in jax.tree.leaves(params, is_leaf=is_sharded))
