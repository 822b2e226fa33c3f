"""A jitted function that runs the program of another class:  python benchmarks/upstream/dataclass_structures.py

Seen in jax 0.10.2 and 0.12.0.1. For a report to JAX; it needs jax alone. `PyTreeDef.__eq__` compares the classes of
nodes that `register_pytree_node` has registered, but not those of `register_dataclass`. So structures of two
dataclasses with equally many fields are equal, though their hashes differ. A cache of `jax.jit` notices that only
where both fall into one bucket: which ones do so differs from process to process, since hashes come from addresses.
Exit status 1 where a structure is equal to that of another class.
"""

import dataclasses
import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax

CLASSES = 100


def made(number: int) -> type:
    """A dataclass with one field, which adds its number to it."""
    cls = dataclasses.make_dataclass(f"Adds{number}", ["x"], namespace={"result": lambda self: self.x + number})
    return jax.tree_util.register_dataclass(cls, data_fields=["x"], meta_fields=[])


def wrong(classes: list[type]) -> list[int]:
    """Numbers of the classes for which one jitted function gives another number."""
    function = jax.jit(lambda node: node.result())
    return [number for number, cls in enumerate(classes) if int(function(cls(0))) != number]


if __name__ == "__main__":
    print(f"jax {jax.__version__}")
    classes = [made(number) for number in range(CLASSES)]
    first, second = (jax.tree.structure(cls(0)) for cls in classes[:2])
    print(f"{first} == {second}: {first == second}, hashes equal: {hash(first) == hash(second)}")
    print(f"of {CLASSES} classes {len(wrong(classes))} get the result of another one")
    sys.exit(int(first == second))
