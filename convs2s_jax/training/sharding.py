"""How parameters are sharded over the mesh: one table of rules, by parameter name."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from convs2s_jax.nn.trees import path_of
from convs2s_jax.nn.types import Array, Tree
from convs2s_jax.training.mesh import ROWS

RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    ("embedding/table", ("tensor", "fsdp")),  # [V, E]
    ("embedding/positions", (None, "fsdp")),  # [P, E]
    ("conv/w", (None, "fsdp", "tensor")),  # [K, C, D]
    ("taps/w", (None, "fsdp")),  # [K, C]
    ("taps/scores", (None, "tensor")),  # [K, H]
    ("taps/maker", ("fsdp", None, "tensor")),  # [C, K, H]
    ("w", ("fsdp", "tensor")),  # [C, D]
    ("b", ("tensor",)),  # [D]
    ("attention/key", ("fsdp", "tensor")),  # [E, A], of a recurrent decoder
    ("attention/score", ("tensor",)),  # [A]
    ("decoder/output", ("tensor",)),  # [V], beside a tied table
    ("output_kernel", ("fsdp", "tensor")),  # [E, V]
    ("norm/scale", (None,)),  # [C]
    ("norm/bias", (None,)),  # [C]
)
"""The end of a parameter's path, and the mesh axis for each of its axes. The first rule that matches is used.

The parts of a weight-normalised kernel, .../w/v and .../w/g, follow the kernel's rule. An optimiser's state follows the
rule of its parameter. An axis whose length the mesh axis does not divide is not sharded.
"""


def spec(name: str, shape: tuple[int, ...], mesh: Mesh) -> P:
    """The partition spec of a parameter, or of an optimiser's state for it.

    Args:
      name: its path, such as "encoder/blocks/0/conv/w/v".
      shape: shape of the array; scalars are not sharded.
      mesh: as `mesh.make` returns it.

    Raises:
      ValueError: no rule matches; a new kind of parameter needs a line in RULES.
    """
    if not shape:
        return P()
    stem = name.removesuffix("/v").removesuffix("/g")
    axes = next((axes for end, axes in RULES if f"/{stem}".endswith(f"/{end}")), None)
    if axes is None or len(axes) != len(shape):
        raise ValueError(f"{name} {shape}: no rule of training.sharding.RULES says how it is cut over devices")
    return P(*(a if a and n % mesh.shape[a] == 0 else None for a, n in zip(axes, shape, strict=True)))


def shardings(abstract: Tree, mesh: Mesh) -> Tree:
    """A NamedSharding for each leaf of a tree of parameters or of a training state."""

    def each(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, spec(path_of(path), leaf.shape, mesh))

    return jax.tree_util.tree_map_with_path(each, abstract)


def gatherer(mesh: Mesh) -> Callable[[Tree], Tree]:
    """A function, for use under `jit`, that gathers parameters sharded over `fsdp` just before they are used.

    This also avoids a bug. A convolution has wrong gradients if its kernel is sharded over `fsdp` along its inputs and
    over `tensor`, and the batch over `data` and `fsdp`: XLA's partitioner exchanges parts of the cotangent and does not
    restore their order (jax 0.10 to 0.12). Gathered kernels are not affected, and matrix products need them anyway.
    """

    def gathered(path: tuple[Any, ...], leaf: Array) -> Array:
        axes = (None if axis == "fsdp" else axis for axis in spec(path_of(path), leaf.shape, mesh))
        return jax.lax.with_sharding_constraint(leaf, NamedSharding(mesh, P(*axes)))

    return lambda params: jax.tree_util.tree_map_with_path(gathered, params)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of a batch: rows over `data` and `fsdp`."""
    return NamedSharding(mesh, P(ROWS))


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of an array that is the same on every device."""
    return NamedSharding(mesh, P())
