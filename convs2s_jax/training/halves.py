"""Kernels before a gated linear unit, whose halves are brought side by side if `tensor` shards them.

v([A B]) = A * sigmoid(B) needs column i of A and of B on one device. A kernel [..., 2D] in n equal shards has A on the
first half of the devices and B on the second. So devices exchange half of their shard before it is gathered, and layers
see the kernel in n groups, [..., n, 2D / n]. Each device has one group: columns of A, and the same columns of B. The
state itself stays as it is.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from convs2s_jax.nn.sharded_params import Gather
from convs2s_jax.nn.types import Array


@dataclass(frozen=True)
class Paired:
    """Builds a kernel [..., n, 2D / n] from a shard of [..., 2D].

    Attributes:
      mesh: the devices; an even number of them along `tensor`.
      gather: gathers the paired shard.
    """

    mesh: Mesh
    gather: Gather

    def __call__(self, value: Any, dtype: Any) -> Array:
        """The kernel in this dtype, from the arrays that `gather` accepts."""
        return self.gather(jax.tree.map(lambda x: paired(x, self.mesh), value), dtype)


def fits(length: int, size: int) -> bool:
    """Whether an axis of 2D = `length` can be paired on `size` devices."""
    return size % 2 == 0 and length % (2 * size) == 0


def paired(x: Array, mesh: Mesh) -> Array:
    """[..., 2D] to [..., n, 2D / n], one group for each shard: each device sends two halves of its shard."""
    size, free = mesh.shape["tensor"], [None] * (x.ndim - 1)
    low = range(size // 2)
    even = [(j, 2 * j) for j in low] + [(j + size // 2, 2 * j + 1) for j in low]
    odd = [(j, 2 * j + 1) for j in low] + [(j + size // 2, 2 * j) for j in low]

    def local(x: Array, numbers: Array) -> Array:
        """Exchange halves of shards: first A goes to even devices and B to odd ones, then the other way round."""
        number = numbers[0]  # libtpu 0.0.42 cannot compile `lax.axis_index` if the partitioner handles other axes
        first, second = jnp.split(x, 2, axis=-1)
        of_a, is_even = number < size // 2, number % 2 == 0
        one = lax.ppermute(jnp.where(of_a, first, second), "tensor", even)
        other = lax.ppermute(jnp.where(of_a, second, first), "tensor", odd)
        halves = [jnp.where(is_even, one, other), jnp.where(is_even, other, one)]
        return jnp.concatenate(halves, axis=-1)[..., None, :]

    context = jax.sharding.get_abstract_mesh()  # within another `shard_map` it states which axes are left
    exchange = jax.shard_map(
        local,
        mesh=mesh if context.empty else context,
        in_specs=(P(*free, "tensor"), P("tensor")),
        out_specs=P(*free, "tensor", None),
        axis_names={"tensor"},
        check_vma=False,
    )
    result: Array = exchange(x, jnp.arange(size))
    return result
