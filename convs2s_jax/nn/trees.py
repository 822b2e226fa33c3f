"""Names for the leaves of a tree of arrays."""

from typing import Any

import jax

from convs2s_jax.nn.types import Tree


def path_of(path: tuple[Any, ...]) -> str:
    """Return the path of a leaf as a string, such as "encoder/blocks/0/w"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def paths(tree: Tree) -> list[str]:
    """Return the path of every leaf, in the order of the tree."""
    return [path_of(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]
