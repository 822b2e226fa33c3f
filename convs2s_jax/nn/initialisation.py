"""Parameter initialisation for many layers, with one loop over layers of equal size."""

import itertools
from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Var

from convs2s_jax.nn import draws
from convs2s_jax.nn.types import Key

T = TypeVar("T")
SizeT = TypeVar("SizeT", bound=Hashable)


def init_each(init: Callable[[Key, SizeT], T], keys: Key, sizes: Sequence[SizeT]) -> list[T]:
    """Compute [init(key, size) for key, size in zip(keys, sizes)], with one loop over all layers of equal size.

    This loop is used on several devices. On one device, `draws.BatchedInit` has a loop over all draws.

    Values are the same, and the program contains the code of the generator once for each size, not once for each layer.
    That code is most of what is compiled. A `vmap` does not help, since XLA repeats the code wherever a layer is sliced
    out. Arrays that do not depend on the key, such as zero biases, stay out of the loop, since each slice of a row is
    compiled.

    Args:
      init: (key, size) -> parameters of one layer, a tree of arrays.
      keys: one for each layer.
      sizes: one for each layer; equal sizes mean equal parameter shapes.
    """
    found: dict[int, T] = {}
    for size in dict.fromkeys(sizes):
        places = [i for i, other in enumerate(sizes) if other == size]

        def of_size(key: Key, size: SizeT = size) -> T:
            return init(key, size)

        found.update(zip(places, init_alike(of_size, keys[np.array(places)]), strict=True))
    return [found[i] for i in range(len(sizes))]


def init_alike(init: Callable[[Key], T], keys: Key) -> list[T]:
    """Compute [init(key) for key in keys] with one loop over the keys. All trees must have the same shapes."""
    if draws.batched():  # one loop for all draws
        return [init(keys[i]) for i in range(len(keys))]
    leaves, structure = jax.tree.flatten(init(keys[0]))
    random = random_leaves(init, keys[0])
    stacks = jax.lax.map(lambda key: list(itertools.compress(jax.tree.leaves(init(key)), random)), keys)
    made = []
    for i in range(len(keys)):
        rows = iter([stack[i] for stack in stacks])
        # copies, so that each layer has its own buffers to donate
        filled = [next(rows) if drawn else jnp.copy(x) for x, drawn in zip(leaves, random, strict=True)]
        made.append(jax.tree.unflatten(structure, filled))
    return made


def random_leaves(init: Callable[[Key], T], key: Key) -> list[bool]:
    """Return for each leaf of init(key) whether it is computed from the key. Biases, for example, are not."""
    jaxpr = jax.make_jaxpr(init)(key).jaxpr
    random = set(jaxpr.invars)
    for equation in jaxpr.eqns:
        if any(isinstance(x, Var) and x in random for x in equation.invars):
            random.update(equation.outvars)
    return [isinstance(x, Var) and x in random for x in jaxpr.outvars]
