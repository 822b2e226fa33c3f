"""How parameters are sharded over the mesh: by rules of the configuration, then by one table of parameter names."""

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from convs2s_jax.core.config import check
from convs2s_jax.nn.trees import path_of
from convs2s_jax.nn.types import Tree
from convs2s_jax.training.mesh import ROWS, Parallel, ShardingRule, check_mesh, names_of

RULES: tuple[tuple[str, tuple[str | None, ...]], ...] = (
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
)
"""The end of a parameter's path, in which * is any one component, and for each of its axes whether `tensor` shards it.
The first matching rule is used.

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
      rules: of the configuration, which come before RULES, and alone determine how an array is sharded.

    Raises:
      ValueError: no rule matches, and the mesh could shard it; a new kind of parameter needs a line in RULES.
    """
    if not shape:
        return P()
    number, stem, rule = config_rule_index(name, rules), stem_of(name), built_in(name)
    axes_of_rule = rules[number].axes if number is not None else rule[1] if rule else ()
    if name.startswith("optimizer/") and len(axes_of_rule) != len(shape):
        return P()  # not an array like the parameter: factors of one, as in adafactor, or the optimiser's own
    if number is not None:
        use = ("tensor",) if cut is None else ("tensor", "fsdp", "data")
        pairs = zip(rules[number].axes, shape, strict=True)
        return P(*(_dividing([a for a in use if a in names_of(axes)], n, mesh) for axes, n in pairs))
    if rule is None or len(rule[1]) != len(shape):
        if all(mesh.shape[axis] == 1 for axis in ("tensor", cut) if axis):
            return P()  # whole under any rule
        example = ("/".join(stem.split("/")[-2:]), (None,) * len(shape))
        raise ValueError(
            f"{name} {shape}: no rule of training.sharding.RULES or mesh.rules specifies how it is sharded; add one to "
            f"mesh.rules, such as {example}, which keeps it whole"
        )
    # no axis of one device: programs leave it out of what they return, and arrays that name it need other programs
    divides = {a: mesh.shape[a] for a in set(rule[1]) if a and mesh.shape[a] > 1}
    axes: list[Any] = [a if a in divides and n % divides[a] == 0 else None for a, n in zip(rule[1], shape, strict=True)]
    if cut is not None and len(shape) > 1 and not stem.endswith(WHOLE):
        free = [i for i, n in enumerate(shape) if not axes[i] and n % mesh.shape[cut] == 0]
        if free:
            axes[free[-1]] = cut
    return P(*axes)


def axes_of(entry: Any) -> tuple[str, ...]:
    """The mesh axes in an entry of a partition spec."""
    return () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)


def _dividing(names: list[str], length: int, mesh: Mesh | AbstractMesh) -> Any:
    """The mesh axes among these that divide what the ones before them leave of the length, as an entry of a spec."""
    kept = list[str]()
    for name in names:
        if mesh.shape[name] > 1 and length % math.prod(mesh.shape[each] for each in [*kept, name]) == 0:
            kept.append(name)
    return entry(kept)


def entry(names: Sequence[str]) -> Any:
    """These mesh axes as an entry of a spec."""
    return tuple(names) if len(names) > 1 else names[0] if names else None


def stem_of(name: str) -> str:
    """The path of a kernel, where `name` may be that of its direction or its length."""
    return name.removesuffix("/v").removesuffix("/g")


def built_in(name: str) -> tuple[str, tuple[str | None, ...]] | None:
    """The rule of RULES for a parameter."""
    return next((rule for rule in RULES if _ends(stem_of(name), rule[0])), None)


def config_rule_index(name: str, rules: Sequence[ShardingRule]) -> int | None:
    """Index of the first of these rules that matches a parameter, None if none does."""
    matching = (number for number, rule in enumerate(rules) if _ends(stem_of(name), stem_of(rule.path)))
    return next(matching, None)


def _ends(name: str, path: str) -> bool:
    """Whether a name ends with a path, in which * is any component."""
    names, parts = name.split("/")[::-1], path.split("/")[::-1]
    return len(parts) <= len(names) and all(part in ("*", own) for part, own in zip(parts, names, strict=False))


def check_rules(params: Tree, rules: Sequence[ShardingRule]) -> None:
    """Check that rules of the configuration fit these trained parameters; shapes are enough.

    Raises:
      UserError: a rule matches no parameter, or has another number of axes, or shards what stays whole.
    """
    arrays = _paths_and_shapes(params)
    numbers = [config_rule_index(name, rules) for name, _ in arrays]
    for number, rule in enumerate(rules):
        where = f"mesh.rules[{number}]"
        check(
            number in numbers,
            f"{where}.path is '{rule.path}': it matches no parameter that earlier rules leave; convs2s config "
            "--config=NAME --shardings lists them",
        )
        for (name, shape), used in zip(arrays, numbers, strict=True):
            if used != number:
                continue
            check(
                len(rule.axes) == len(shape),
                f"{where}.axes has {len(rule.axes)} entries, but {name} has {len(shape)} axes: use one entry per axis",
            )
            rows = [axis for text in rule.axes for axis in names_of(text) if axis in ROWS]
            check(
                not (rows and stem_of(name).endswith(WHOLE)),
                f"{where}.axes contains {rows[0] if rows else ''}, but {name} stays whole between updates: use tensor "
                "only",
            )


def _paths_and_shapes(params: Tree) -> list[tuple[str, tuple[int, ...]]]:
    return [(path_of(path), leaf.shape) for path, leaf in jax.tree_util.tree_leaves_with_path(params)]


def shardings(abstract: Tree, mesh: Mesh, parallel: Parallel = "jit", *, rules: Sequence[ShardingRule] = ()) -> Tree:
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


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of an array that is the same on every device."""
    return NamedSharding(mesh, P())
