"""Pytree dataclasses, each with its own tree structure."""

import typing
from typing import Any, TypeVar

import flax.struct

field = flax.struct.field
T = TypeVar("T")


@typing.dataclass_transform(frozen_default=True, field_specifiers=(field,))
def dataclass(cls: type[T]) -> type[T]:
    """Class decorator like `flax.struct.dataclass`, which adds the class itself to the static values of the structure.

    In JAX 0.10 to 0.12, the structures of two dataclasses with the same number of fields compare equal, although their
    hashes differ (`benchmarks/upstream/dataclass_structures.py`). In jax 0.10, a jitted function then runs the program
    of one class for the other whenever both hashes fall into the same bucket of a cache. In 1 of 50 processes, the
    program of a `Memory` ran for another dataclass of the same shapes, with wrong results.
    """
    made: Any = cls
    made.__annotations__["node_class"] = type
    made.node_class = field(pytree_node=False, default=cls, repr=False, compare=False, kw_only=True)
    flax.struct.dataclass(cls)
    del made.__dataclass_fields__["node_class"]  # only JAX needs it: not for `asdict` and other functions of fields
    return cls
