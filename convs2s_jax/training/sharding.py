"""How parameters are sharded over the mesh: by rules of the configuration, then by one table of parameter names.

`table` lists what a device stores of each, and by which rule.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

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


class TableRow(NamedTuple):
    """Parameters that are alike, such as the kernels of equal layers.

    Attributes:
      name: path, with * for the number of a layer if all are alike, else 0, 1-3 and so on.
      number: of parameters.
      shape: of each.
      axes: for each axis of the array, the mesh axes that shard it.
      bytes_here: of all of them on a device.
      bytes_whole: of all of them unsharded.
      rule: where the sharding comes from: the end of a path in `RULES`, or mesh.rules[NUMBER].
    """

    name: str
    number: int
    shape: tuple[int, ...]
    axes: tuple[tuple[str, ...], ...]
    bytes_here: int
    bytes_whole: int
    rule: str

    @property
    def cut(self) -> str:
        """The axes as text: "-, -, tensor+fsdp"."""
        return ", ".join("+".join(names) or "-" for names in self.axes)


def table(
    params: Tree, mesh: Mesh | AbstractMesh, parallel: Parallel = "jit", rules: Sequence[ShardingRule] = ()
) -> list[TableRow]:
    """Return a row for each parameter, in the order of the tree; equal layers share a row.

    Args:
      params: trained parameters, or a state; shapes are enough.
      mesh: the axes.
      parallel: how an update is spread over devices.
      rules: of the configuration.
    """
    groups: dict[Any, list[tuple[str, TableRow]]] = {}
    layers: dict[str, int] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        row = _row(path_of(path), leaf, mesh, parallel, rules)
        name, number = _folded(row.name)
        layers[name] = layers.get(name, 0) + 1
        groups.setdefault((name, *row[1:]), []).append((number, row))
    return [_together(key[0], group, layers[key[0]]) for key, group in groups.items()]


def summary(found: Sequence[TableRow]) -> str:
    """Summarise the table: how many parameters each rule shards along which axes, and bytes."""
    here, whole = sum(row.bytes_here for row in found), sum(row.bytes_whole for row in found)
    counts: dict[str, int] = {}
    for row in found:
        name = f"{row.rule} [{row.cut}]"
        counts[name] = counts.get(name, 0) + row.number
    listed = "; ".join(f"{name}: {count}" for name, count in counts.items())
    return f"parameters by rule: {listed}. Each device stores {size_text(here)} of {size_text(whole)}"


def size_text(size: int) -> str:
    """Bytes for the user: "1.23 MB"."""
    return f"{size / 1e6:.2f} MB" if size >= 1e6 else f"{size / 1e3:.2f} kB"


def _row(
    name: str, leaf: Any, mesh: Mesh | AbstractMesh, parallel: Parallel, rules: Sequence[ShardingRule]
) -> TableRow:
    cut = None if parallel == "pmap" else state_axis(mesh)
    placed = spec(name, leaf.shape, mesh, cut=cut, rules=rules)
    axes = tuple(tuple(name for name in axes_of(entry) if mesh.shape[name] > 1) for entry in placed)
    size, parts = leaf.dtype.itemsize * math.prod(leaf.shape), math.prod(mesh.shape[a] for names in axes for a in names)
    number, own = config_rule_index(name, rules), built_in(name)
    fits = own is not None and len(own[1]) == len(leaf.shape)
    rule = f"mesh.rules[{number}]" if number is not None else own[0] if own and fits else ""
    return TableRow(name, 1, leaf.shape, axes, size // parts, size, rule)


def _folded(name: str) -> tuple[str, str]:
    """A path with * for the number of its layer, and that number."""
    parts = name.split("/")
    place = next((i for i, part in enumerate(parts) if part.isdecimal()), None)
    return (name, "") if place is None else ("/".join([*parts[:place], "*", *parts[place + 1 :]]), parts[place])


def _together(name: str, group: Sequence[tuple[str, TableRow]], layers: int) -> TableRow:
    if len(group) < layers:
        name = name.replace("*", _ranges([int(number) for number, _ in group]), 1)
    row, count = group[0][1], len(group)
    return row._replace(name=name, number=count, bytes_here=count * row.bytes_here, bytes_whole=count * row.bytes_whole)


def _ranges(numbers: Sequence[int]) -> str:
    """Increasing numbers as text: "0,2-4"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] + 1 == number:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
