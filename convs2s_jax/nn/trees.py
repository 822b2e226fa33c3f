"""Names for the leaves of a tree of arrays, and its records of given classes."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax

from convs2s_jax.nn.types import Tree

T = TypeVar("T")
Classes = type | tuple[type, ...]


def path_of(path: tuple[Any, ...]) -> str:
    """Return the path of a leaf as a string, such as "encoder/blocks/0/w"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def paths(tree: Tree) -> list[str]:
    """Return the path of every leaf, in the order of the tree."""
    return [path_of(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def nodes(tree: Tree, classes: Classes) -> list[Any]:
    """Return the records of these classes in a tree, without those inside others."""
    found = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, classes))
    return [x for x in found if isinstance(x, classes)]


def map_nodes(f: Callable[[Any], Any], tree: T, classes: Classes) -> T:
    """Replace each record x of these classes in a tree, unless it is inside another, with f(x)."""

    def is_node(x: Any) -> bool:
        return isinstance(x, classes)

    made: T = jax.tree.map(lambda x: f(x) if is_node(x) else x, tree, is_leaf=is_node)
    return made
