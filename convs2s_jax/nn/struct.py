"""Dataclasses that are pytrees, each with a tree structure of its own."""

import typing
from typing import Any, TypeVar

import flax.struct

field = flax.struct.field
T = TypeVar("T")


class NodeClass:
    """A class as the value of a field, equal to itself alone. Flax's `tabulate` reads fields of a bare dataclass."""

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def __eq__(self, other: object) -> bool:
        return isinstance(other, NodeClass) and self.cls is other.cls

    def __hash__(self) -> int:
        return hash(self.cls)

    def __repr__(self) -> str:
        return self.cls.__name__


@typing.dataclass_transform(frozen_default=True, field_specifiers=(field,))
def dataclass(cls: type[T]) -> type[T]:
    """Class decorator: `flax.struct.dataclass`, with the class itself as a static field of the structure.

    To JAX 0.10 to 0.12, structures of two dataclasses with equally many fields are equal, though their hashes differ
    (`benchmarks/upstream/dataclass_structures.py`). In jax 0.10 a jitted function then runs for one class the program
    of the other wherever both hashes happen to fall into one bucket of a cache. So the program of a `Memory` ran for a
    `MappedMemory` of the same shapes in 1 of 50 processes, and gave wrong numbers.
    """
    made: Any = cls
    made.__annotations__["node_class"] = NodeClass
    made.node_class = field(pytree_node=False, default=NodeClass(cls), repr=False, compare=False, kw_only=True)
    return flax.struct.dataclass(cls)
