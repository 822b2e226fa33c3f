"""Reproduce a jitted function that runs another class's program:  python benchmarks/upstream/dataclass_structures.py

Wrong in jax 0.10.2 and 0.12.0.1. For a bug report to JAX; it only needs jax. `PyTreeDef.__eq__` compares the classes of
nodes registered with `register_pytree_node`, but not those of `register_dataclass`. So the structures of two
dataclasses with the same number of fields are equal, although their hashes differ. This affects a cache of `jax.jit`
only if both hashes fall into the same bucket. Which ones do varies between processes, since hashes come from addresses.
The exit status is 1 if a structure is equal to that of another class.
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
    """Return the numbers of the classes for which a jitted function returns another number."""
    function = jax.jit(lambda node: node.result())
    return [number for number, cls in enumerate(classes) if int(function(cls(0))) != number]


if __name__ == "__main__":
    print(f"jax {jax.__version__}")
    classes = [made(number) for number in range(CLASSES)]
    first, second = (jax.tree.structure(cls(0)) for cls in classes[:2])
    print(f"{first} == {second}: {first == second}, hashes equal: {hash(first) == hash(second)}")
    print(f"of {CLASSES} classes {len(wrong(classes))} get the result of another one")
    sys.exit(int(first == second))
