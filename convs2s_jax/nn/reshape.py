"""Reshaping where types of arrays have shardings (`parallel=explicit`).

There JAX accepts three kinds of reshapes alone, one at a time: an axis is split, neighbouring axes are merged, axes of
length 1 come and go. Any reshape is a sequence of these, which XLA makes one again.
"""

import math
from collections.abc import Iterator, Sequence

from convs2s_jax.nn.types import Array, shardings_in_types


def reshape(x: Array, shape: Sequence[int]) -> Array:
    """x in another shape, of which one length may be -1. ValueError if x has not as many numbers."""
    if shardings_in_types() and x.size:
        known = math.prod(n for n in shape if n != -1)
        for step in steps(x.shape, [x.size // known if n == -1 else n for n in shape]):
            x = x.reshape(step)
    return x.reshape(shape)


def steps(old: Sequence[int], new: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Shapes between two of the same size, without axes of length 1; the last is that of `new`.

    Each differs from the one before by a split of one axis or by a merger of neighbours.
    """
    before, after = [n for n in old if n != 1], [n for n in new if n != 1]
    yield tuple(before)
    done: list[int] = []
    while before and after:
        first, second = 1, 1  # as many axes of both as have the same product
        while (one := math.prod(before[:first])) != (other := math.prod(after[:second])):
            first, second = (first + 1, second) if one < other else (first, second + 1)
        merged, split, before, after = before[:first], after[:second], before[first:], after[second:]
        if len(merged) > 1:
            yield (*done, math.prod(merged), *before)
        if len(split) > 1:
            yield (*done, *split, *before)
        done += split
