"""Parameters sharded over devices: they are gathered before the first layer, or by the layers that use them.

On a mesh that shards parameters (fully sharded data parallelism, Zhao et al. 2023) the training step hands the layers
`Part`s in place of arrays. Layers that run one after another call `whole` on their parameters first, so that only the
kernels of the layers at work are in memory. `early` parts are whole before that: they cost memory, and save the second
gather for the backward pass. Outside of such a step parameters are arrays, and `whole` changes nothing.
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
"""(part of this device, dtype) -> the whole array in this dtype. Equal ones compare as equal, so that layers can be
stacked; the gradient of the whole array comes back as that of the part, summed over devices."""
LookUp = Callable[[Any, Array, Any], Array]
"""(part of this device, indices, dtype) -> those rows of the whole array, sent in this dtype. The rest of the array is
not sent."""


@struct.dataclass
class Part:
    """A part of an array, and how the whole is made of it.

    Attributes:
      value: the part that this device holds, as `gather` takes it.
      gather: makes the whole array.
      dtype: of the whole array.
      early: whether it is made whole once, before the first layer, and not by the layer that uses it.
      look_up: finds rows of a table without the rest of it; None where it has to be whole.
    """

    value: Any
    gather: Gather = struct.field(pytree_node=False)
    dtype: DTypeLike = struct.field(pytree_node=False)
    early: bool = struct.field(pytree_node=False, default=False)
    look_up: LookUp | None = struct.field(pytree_node=False, default=None)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the whole array."""
        return tuple(jax.eval_shape(lambda value: self.gather(value, self.dtype), self.value).shape)

    def astype(self, dtype: DTypeLike) -> "Part":
        """The same part, whose whole array has this dtype: it is converted before it is gathered."""
        return dataclasses.replace(self, dtype=dtype)


def is_part(x: Any) -> bool:
    """Whether a node of a tree is a `Part`."""
    return isinstance(x, Part)


def whole(params: T) -> T:
    """The parameters with every `Part` made whole."""
    made: T = jax.tree.map(lambda x: x.gather(x.value, x.dtype) if is_part(x) else x, params, is_leaf=is_part)
    return made


def whole_early(params: T) -> T:
    """The parameters with every early `Part` made whole."""
    made: T = jax.tree.map(
        lambda x: x.gather(x.value, x.dtype) if is_part(x) and x.early else x, params, is_leaf=is_part
    )
    return made


def in_parts(params: Any) -> bool:
    """Whether any of the parameters is a `Part`."""
    return any(is_part(x) for x in jax.tree.leaves(params, is_leaf=is_part))
