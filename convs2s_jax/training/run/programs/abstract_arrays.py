"""Arrays as shapes with shardings, from which a program is compiled before its arguments exist."""

from typing import Any

import jax
from jax.sharding import Mesh, Sharding

from convs2s_jax.nn.types import Tree
from convs2s_jax.training import sharding
from convs2s_jax.training.batch import Batch


def abstract_batch(mesh: Mesh, *, rows: int, src: int, tgt: int) -> Batch:
    """A batch of this many rows and tokens per row, sharded over the devices as in training."""
    sides: list[Any] = [jax.ShapeDtypeStruct((rows, length), "int32") for length in (src, tgt)]
    return placed(Batch(src=sides[0], tgt=sides[1]), sharding.batch_sharding(mesh))


def abstract_key() -> Any:
    """A random key."""
    return jax.eval_shape(lambda: jax.random.key(0))


def placed(tree: Tree, where: Tree) -> Tree:
    """Abstract arrays with shardings, one for all or one for each."""
    if isinstance(where, Sharding):
        where = jax.tree.map(lambda _: where, tree)
    return jax.tree.map(lambda x, place: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), tree, where)


def places(tree: Tree) -> Tree:
    """The shardings of arrays, abstract or not."""
    return jax.tree.map(lambda leaf: leaf.sharding, tree)
