"""The resolved shardings of parameters as a table: what a device stores of each, and by which rule."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import AbstractMesh, Mesh

from convs2s_jax.nn.trees import path_of
from convs2s_jax.nn.types import Tree
from convs2s_jax.training import sharding
from convs2s_jax.training.mesh import Parallel, ShardingRule


class Row(NamedTuple):
    """Parameters that are alike, such as the kernels of equal layers.

    Attributes:
      name: path, with * for the number of a layer if all are alike, else 0, 1-3 and so on.
      number: of parameters.
      shape: of each.
      axes: for each axis of the array, the mesh axes that shard it.
      bytes_here: of all of them on a device.
      bytes_whole: of all of them unsharded.
      rule: where the sharding comes from: the end of a path in `sharding.RULES`, or mesh.rules[NUMBER].
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


def rows(
    params: Tree, mesh: Mesh | AbstractMesh, parallel: Parallel = "jit", rules: Sequence[ShardingRule] = ()
) -> list[Row]:
    """Return a row for each parameter, in the order of the tree; equal layers share a row.

    Args:
      params: trained parameters, or a state; shapes are enough.
      mesh: the axes.
      parallel: how an update is spread over devices.
      rules: of the configuration.
    """
    groups: dict[Any, list[tuple[str, Row]]] = {}
    layers: dict[str, int] = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        row = _row(path_of(path), leaf, mesh, parallel, rules)
        name, number = _folded(row.name)
        layers[name] = layers.get(name, 0) + 1
        groups.setdefault((name, *row[1:]), []).append((number, row))
    return [_together(key[0], group, layers[key[0]]) for key, group in groups.items()]


def summary(found: Sequence[Row]) -> str:
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


def _row(name: str, leaf: Any, mesh: Mesh | AbstractMesh, parallel: Parallel, rules: Sequence[ShardingRule]) -> Row:
    cut = None if parallel == "pmap" else sharding.state_axis(mesh)
    spec = sharding.spec(name, leaf.shape, mesh, cut=cut, rules=rules)
    axes = tuple(tuple(name for name in sharding.axes_of(entry) if mesh.shape[name] > 1) for entry in spec)
    size, parts = leaf.dtype.itemsize * math.prod(leaf.shape), math.prod(mesh.shape[a] for names in axes for a in names)
    number, built_in = sharding.config_rule_index(name, rules), sharding.built_in(name)
    fits = built_in is not None and len(built_in[1]) == len(leaf.shape)
    rule = f"mesh.rules[{number}]" if number is not None else built_in[0] if built_in and fits else ""
    return Row(name, 1, leaf.shape, axes, size // parts, size, rule)


def _folded(name: str) -> tuple[str, str]:
    """A path with * for the number of its layer, and that number."""
    parts = name.split("/")
    place = next((i for i, part in enumerate(parts) if part.isdecimal()), None)
    return (name, "") if place is None else ("/".join([*parts[:place], "*", *parts[place + 1 :]]), parts[place])


def _together(name: str, group: Sequence[tuple[str, Row]], layers: int) -> Row:
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
