"""Dataclasses that are pytrees, each with a tree structure of its own."""

import typing
from typing import Any, TypeVar

import flax.struct

field = flax.struct.field
T = TypeVar("T")


@typing.dataclass_transform(frozen_default=True, field_specifiers=(field,))
def dataclass(cls: type[T]) -> type[T]:
    """Class decorator: `flax.struct.dataclass`, with the class itself as a static field of the structure.

    To JAX 0.10 to 0.12, structures of two dataclasses with equally many fields are equal, though their hashes differ
    (`benchmarks/upstream/dataclass_structures.py`). In jax 0.10 a jitted function then runs for one class the program
    of the other wherever both hashes happen to fall into one bucket of a cache. So the program of a `Memory` ran for a
    `MappedMemory` of the same shapes in 1 of 50 processes, and gave wrong numbers.
    """
    made: Any = cls
    made.__annotations__["node_class"] = type
    made.node_class = field(pytree_node=False, default=cls, repr=False, compare=False, kw_only=True)
    return flax.struct.dataclass(cls)
