"""Fresh parameters of many layers, of which some are alike."""

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

import jax
import numpy as np

from convs2s_jax.nn.types import Key

T = TypeVar("T")
S = TypeVar("S", bound=Hashable)


def init_each(init: Callable[[Key, S], T], keys: Key, sizes: Sequence[S]) -> list[T]:
    """[init(key, size) for key, size in zip(keys, sizes)], with one loop over all layers of equal size.

    Values are the same, and the program has the code of the generator once for each size, not once for each layer. That
    code is most of what is compiled. A `vmap` does not help: XLA repeats the code wherever a layer is cut out.

    Args:
      init: parameters of one layer, a tree of arrays.
      keys: [L], one for each layer.
      sizes: of each layer: what decides the shapes of its parameters.
    """
    found: dict[int, T] = {}
    for size in dict.fromkeys(sizes):
        places = [i for i, other in enumerate(sizes) if other == size]
        drawn = jax.lax.map(lambda key, size=size: init(key, size), keys[np.array(places)])
        for row, place in enumerate(places):
            found[place] = jax.tree.map(lambda x, row=row: x[row], drawn)
    return [found[i] for i in range(len(sizes))]
