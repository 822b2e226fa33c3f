"""How parameters are sharded over the mesh: by rules of the configuration, then by one table of parameter names."""

import math
from collections.abc import Sequence
from itertools import starmap
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from convs2s_jax.core.config import check
from convs2s_jax.nn.trees import path_of
from convs2s_jax.nn.types import Tree
from convs2s_jax.training.mesh import AXES, ROWS, Parallel, ShardingRule

RULES = tuple(
    starmap(
        ShardingRule,
        [
            ("embedding/table", ("tensor", None)),  # [V, E]
            ("embedding/positions", (None, None)),  # [P, E]
            ("conv/w", (None, None, "tensor")),  # [K, C, D]
            ("taps/w", (None, None)),  # [K, C]
            ("taps/scores", (None, "tensor")),  # [K, H]
            ("taps/maker", (None, None, "tensor")),  # [C, K, H]
            ("blocks/*/attention/query/w", ("tensor", None)),  # [C, E], sums over sharded channels
            ("blocks/*/attention/query/b", (None,)),  # [E]
            ("encoder/map_out/w", ("tensor", None)),  # [C, E], sums as well
            ("encoder/map_out/b", (None,)),  # [E]
            ("decoder/map_out/w", ("tensor", None)),  # [C, O]
            ("decoder/map_out/b", (None,)),  # [O]
            ("w", (None, "tensor")),  # [C, D]
            ("b", ("tensor",)),  # [D]
            ("attention/key", (None, "tensor")),  # [E, U], of a recurrent decoder
            ("attention/score", ("tensor",)),  # [U]
            ("decoder/output", ("tensor",)),  # [V], next to a tied table
            ("output_kernel", (None, "tensor")),  # [E, V]
            ("norm/scale", (None,)),  # [C]
            ("norm/bias", (None,)),  # [C]
        ],
    )
)
"""For the end of a parameter's path, which of its axes `tensor` shards. The first matching rule is used.

The parts of a weight-normalised kernel, .../w/v and .../w/g, follow the kernel's rule. An optimiser's state follows the
rule of its parameter. An axis whose length the mesh axis does not divide is not sharded.
"""

WHOLE = ("taps/w", "taps/scores")
"""Ends of paths of small arrays that the state's axis does not shard. XLA's partitioner gave wrong gradients of
taps/scores sharded over `fsdp` and `tensor` (jax 0.10, mesh 2 x 2 x 2)."""


def state_axis(mesh: Mesh | AbstractMesh) -> str:
    """Return the mesh axis that shards parameters and optimiser state between updates.

    `fsdp` if it has several devices, else `data`: then each device updates only its shards, and kernels are gathered
    for the next gradients (ZeRO, Rajbhandari et al. 2020).
    """
    return "fsdp" if mesh.shape["fsdp"] > 1 else "data"


def spec(
    name: str,
    shape: tuple[int, ...],
    mesh: Mesh | AbstractMesh,
    *,
    cut: str | None = None,
    rules: Sequence[ShardingRule] = (),
) -> P:
    """Return the partition spec of a parameter, or of an optimiser's state for it.

    Args:
      name: its path, such as "encoder/blocks/0/conv/w/v".
      shape: shape of the array. Scalars are not sharded, nor is an optimiser's array with other axes than its rule.
      mesh: as `mesh.make` returns it.
      cut: None for an array in use. Between updates, the mesh axis that also shards arrays of two or more axes, along
        the last axis that it divides and `tensor` does not shard: norms of a kernel are over all but the last.
      rules: of the configuration, which come before RULES.

    Raises:
      ValueError: no rule matches, and the mesh could shard it; a new kind of parameter needs a line in RULES.
    """
    if not shape:
        return P()
    rule, stem = rule_of(name, rules), _stem(name)
    if rule is None or len(rule.axes) != len(shape):
        if name.startswith("optimizer/") or all(mesh.shape[axis] == 1 for axis in ("tensor", cut) if axis):
            return P()
        example = ("/".join(stem.split("/")[-2:]), (None,) * len(shape))
        raise ValueError(
            f"{name} {shape}: no rule of training.sharding.RULES or mesh.rules specifies how it is sharded; add one to "
            f"mesh.rules, such as {example}, which keeps it whole"
        )
    # no axis of one device: programs leave it out of what they return, and arrays that name it need other programs
    axes: list[str | None] = [
        axis if axis and mesh.shape[axis] > 1 and n % mesh.shape[axis] == 0 else None
        for axis, n in zip(rule.axes, shape, strict=True)
    ]
    if cut is not None and len(shape) > 1 and not stem.endswith(WHOLE):
        free = [i for i, n in enumerate(shape) if not axes[i] and n % mesh.shape[cut] == 0]
        if free:
            axes[free[-1]] = cut
    return P(*axes)


def rule_of(name: str, rules: Sequence[ShardingRule]) -> ShardingRule | None:
    """The first of these rules, then of RULES, whose path is the end of this one, with * for any component."""
    for rule in (*rules, *RULES):
        parts = _stem(rule.path).split("/")
        names = _stem(name).split("/")[-len(parts) :]
        if len(parts) == len(names) and all(part in ("*", own) for part, own in zip(parts, names, strict=True)):
            return rule
    return None


def _stem(name: str) -> str:
    """The path of a kernel, where `name` may be that of its direction or its length."""
    return name.removesuffix("/v").removesuffix("/g")


def check_rules(params: Tree, rules: Sequence[ShardingRule]) -> None:
    """Check that rules of the configuration fit these trained parameters; shapes are enough.

    Raises:
      UserError: a rule matches no parameter, or has another number of axes.
    """
    named = [(path_of(path), len(leaf.shape)) for path, leaf in jax.tree_util.tree_leaves_with_path(params)]
    for number, rule in enumerate(rules):
        matched = [(name, axes) for name, axes in named if rule_of(name, rules) == rule]
        check(
            bool(matched),
            f"mesh.rules[{number}].path is '{rule.path}': it matches no parameter that earlier rules leave; convs2s "
            "config --config=NAME --shardings=N lists them",
        )
        for name, axes in matched:
            check(
                len(rule.axes) == axes,
                f"mesh.rules[{number}].axes has {len(rule.axes)} entries, but {name} has {axes} axes: use one entry "
                "per axis",
            )


def check_mesh(mesh: Mesh | AbstractMesh) -> None:
    """Reject a mesh with other axes than those of `make`.

    Raises:
      ValueError: an axis is missing, or has another name.
    """
    if set(mesh.axis_names) != set(AXES):
        raise ValueError(f"mesh has the axes {mesh.axis_names}: expected {AXES}, as convs2s.make_mesh creates them")


def shardings(
    abstract: Tree, mesh: Mesh | AbstractMesh, parallel: Parallel = "jit", *, rules: Sequence[ShardingRule] = ()
) -> Tree:
    """Return a NamedSharding for each leaf of trained parameters or of a training state. With pmap they are whole.

    Raises ValueError as `check_mesh` and `spec` do.
    """
    check_mesh(mesh)
    cut = None if parallel == "pmap" else state_axis(mesh)

    def each(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        return NamedSharding(mesh, spec(path_of(path), leaf.shape, mesh, cut=cut, rules=rules))

    return jax.tree_util.tree_map_with_path(each, abstract)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of a batch: rows over `data` and `fsdp`. Raises ValueError as `check_mesh` does."""
    check_mesh(mesh)
    return NamedSharding(mesh, P(ROWS))


def row_shards(mesh: Mesh | AbstractMesh) -> int:
    """Number of shards of the rows of a batch. Raises ValueError as `check_mesh` does."""
    check_mesh(mesh)
    return math.prod(mesh.shape[axis] for axis in ROWS)


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of an array that is the same on every device."""
    return NamedSharding(mesh, P())


def stored_bytes(tree: Tree) -> tuple[int, int]:
    """Bytes of arrays, abstract or not, on one device by their shardings, and those of whole arrays."""
    leaves = jax.tree.leaves(tree)
    here = sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in leaves)
    return here, sum(math.prod(x.shape) * x.dtype.itemsize for x in leaves)


def size_text(size: int) -> str:
    """Bytes for the user: "1.23 MB"."""
    return f"{size / 1e6:.2f} MB" if size >= 1e6 else f"{size / 1e3:.2f} kB"
