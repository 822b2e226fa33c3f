"""Which axis of which parameter is cut over which axis of the mesh: one table, by name."""

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
"""The end of a parameter's path, and a mesh axis for each of its own; the first that fits counts.

Parts of a normalised kernel, .../w/v and .../w/g, follow the kernel's rule, and the state of an optimiser the rule of
its parameter. What a mesh axis does not divide is not cut along it.
"""


def spec(name: str, shape: tuple[int, ...], mesh: Mesh) -> P:
    """How a parameter, or what an optimiser keeps of it, is cut.

    Args:
      name: its path, such as "encoder/blocks/0/conv/w/v".
      shape: of the array; single numbers are not cut.
      mesh: of `mesh.make`.

    Raises:
      ValueError: no rule fits; a new kind of parameter needs its line in RULES.
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
    """A function, for use under `jit`, that puts together what is cut over `fsdp`, as it is just before its use.

    A convolution whose kernel is cut over `fsdp` along its inputs has wrong gradients where the batch is cut over
    `data` and `fsdp` and the kernel over `tensor` as well: XLA's partitioner exchanges parts of the cotangent and does
    not bring them back (jax 0.10 to 0.12). Gathered kernels are not concerned, and products need them gathered anyway.
    """

    def gathered(path: tuple[Any, ...], leaf: Array) -> Array:
        axes = (None if axis == "fsdp" else axis for axis in spec(path_of(path), leaf.shape, mesh))
        return jax.lax.with_sharding_constraint(leaf, NamedSharding(mesh, P(*axes)))

    return lambda params: jax.tree_util.tree_map_with_path(gathered, params)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Rows of a batch over `data` and `fsdp`."""
    return NamedSharding(mesh, P(ROWS))


def replicated(mesh: Mesh) -> NamedSharding:
    """The same on every device."""
    return NamedSharding(mesh, P())
