"""Reshaping of arrays whose types include shardings (`parallel=explicit`).

For these, JAX only accepts three kinds of reshapes, one at a time: split an axis, merge adjacent axes, add or remove
axes of length 1. Any reshape is a sequence of these, which XLA turns into one again.
"""

import math
from collections.abc import Iterator, Sequence

from convs2s_jax.nn.types import Array, shardings_in_types


def reshape(x: Array, shape: Sequence[int]) -> Array:
    """Reshape x; one length may be -1. Raises ValueError if the sizes differ."""
    if shardings_in_types() and x.size:
        known = math.prod(n for n in shape if n != -1)
        for step in steps(x.shape, [x.size // known if n == -1 else n for n in shape]):
            x = x.reshape(step)
    return x.reshape(shape)


def steps(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the intermediate shapes between two shapes of the same size, without axes of length 1; the last is `new`.

    Each differs from the one before by splitting one axis or merging adjacent axes.
    """
    before, after = [n for n in old if n != 1], [n for n in new if n != 1]
    yield tuple(before)
    done: list[int] = []
    while before and after:
        first, second = 1, 1  # numbers of leading axes of both with the same product
        while (one := math.prod(before[:first])) != (other := math.prod(after[:second])):
            first, second = (first + 1, second) if one < other else (first, second + 1)
        merged, split, before, after = before[:first], after[:second], before[first:], after[second:]
        if len(merged) > 1:
            yield (*done, math.prod(merged), *before)
        if len(split) > 1:
            yield (*done, *split, *before)
        done += split
