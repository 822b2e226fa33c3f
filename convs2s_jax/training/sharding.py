"""How parameters are sharded over the mesh: one table of rules, by parameter name."""

from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from convs2s_jax.nn.trees import path_of
from convs2s_jax.nn.types import Tree
from convs2s_jax.training.mesh import ROWS, Parallel

RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
    ("embedding/table", ("tensor", None)),  # [V, E]
    ("embedding/positions", (None, None)),  # [P, E]
    ("conv/w", (None, None, "tensor")),  # [K, C, D]
    ("taps/w", (None, None)),  # [K, C]
    ("taps/scores", (None, "tensor")),  # [K, H]
    ("taps/maker", (None, None, "tensor")),  # [C, K, H]
    ("w", (None, "tensor")),  # [C, D]
    ("b", ("tensor",)),  # [D]
    ("attention/key", (None, "tensor")),  # [E, A], of a recurrent decoder
    ("attention/score", ("tensor",)),  # [A]
    ("decoder/output", ("tensor",)),  # [V], beside a tied table
    ("output_kernel", (None, "tensor")),  # [E, V]
    ("norm/scale", (None,)),  # [C]
    ("norm/bias", (None,)),  # [C]
)
"""The end of a parameter's path, and for each of its axes whether `tensor` shards it. The first rule that matches is
used.

The parts of a weight-normalised kernel, .../w/v and .../w/g, follow the kernel's rule. An optimiser's state follows the
rule of its parameter. An axis whose length the mesh axis does not divide is not sharded.
"""

WHOLE = ("taps/w", "taps/scores")
"""Ends of paths of arrays that are small and that the state's axis does not cut. XLA's partitioner gave wrong gradients
of taps/scores that were cut over `fsdp` and `tensor` (jax 0.10, mesh 2 x 2 x 2)."""


def state_axis(mesh: Mesh) -> str:
    """The mesh axis that cuts parameters and optimiser state between updates.

    `fsdp` if it has several devices, else `data`: then each device updates its part only, and kernels are gathered for
    the next gradients (ZeRO, Rajbhandari et al. 2020).
    """
    return "fsdp" if mesh.shape["fsdp"] > 1 else "data"


def spec(name: str, shape: tuple[int, ...], mesh: Mesh, *, cut: str | None = None) -> P:
    """The partition spec of a parameter, or of an optimiser's state for it.

    Args:
      name: its path, such as "encoder/blocks/0/conv/w/v".
      shape: shape of the array; scalars are not sharded.
      mesh: as `mesh.make` returns it.
      cut: a mesh axis that also cuts arrays of two and more axes, along the last of them that it divides: norms of a
        kernel go over the others.

    Raises:
      ValueError: no rule matches; a new kind of parameter needs a line in RULES.
    """
    if not shape:
        return P()
    stem = name.removesuffix("/v").removesuffix("/g")
    rule = next((axes for end, axes in RULES if f"/{stem}".endswith(f"/{end}")), None)
    if rule is None or len(rule) != len(shape):
        raise ValueError(f"{name} {shape}: no rule of training.sharding.RULES says how it is cut over devices")
    # no axis of one device: programs leave it out of what they return, and arrays that name it have other programs
    divides = {a: mesh.shape[a] for a in set(rule) if a and mesh.shape[a] > 1}
    axes: list[Any] = [a if a in divides and n % divides[a] == 0 else None for a, n in zip(rule, shape, strict=True)]
    if cut is not None and len(shape) > 1 and not stem.endswith(WHOLE):
        for i in reversed(range(len(shape))):
            count = mesh.shape[cut] * (mesh.shape["tensor"] if axes[i] else 1)
            if shape[i] % count == 0:
                axes[i] = (axes[i], cut) if axes[i] else cut
                break
    return P(*axes)


def shardings(abstract: Tree, mesh: Mesh, parallel: Parallel = "jit") -> Tree:
    """A NamedSharding for each leaf of a tree of trained parameters or of a training state. pmap has them whole."""
    cut = None if parallel == "pmap" else state_axis(mesh)

    def each(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, spec(path_of(path), leaf.shape, mesh, cut=cut))

    return jax.tree_util.tree_map_with_path(each, abstract)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of a batch: rows over `data` and `fsdp`."""
    return NamedSharding(mesh, P(ROWS))


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of an array that is the same on every device."""
    return NamedSharding(mesh, P())
