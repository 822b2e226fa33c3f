"""Reproduce checkpoints that cannot be read in a folder such as [a]:  python benchmarks/upstream/bracket_path.py

Wrong in orbax-checkpoint 0.12.8 with etils 1.15.0; it only needs these and JAX. `epath.Path.glob` joins its own path
and the pattern without escaping the path, so brackets in a folder's name are a pattern that does not match the folder.
`merge_ocdbt_per_process_files` then finds no arrays to merge, and the save ends without an error. The exit status is 1
if a checkpoint cannot be restored.
"""

import importlib.metadata
import sys
import tempfile
from pathlib import Path

import jax.numpy as jnp
import orbax.checkpoint as ocp
from etils import epath


def main() -> None:
    """Save and restore one array in folders with and without brackets, and print the results."""
    print(*(f"{name} {importlib.metadata.version(name)}" for name in ("orbax-checkpoint", "etils")))
    lost = False
    for name in ("a", "[a]", "[ab]"):
        with tempfile.TemporaryDirectory() as temporary, ocp.StandardCheckpointer() as checkpointer:
            folder = Path(temporary, name)
            folder.mkdir()
            (folder / "file").touch()
            checkpointer.save(folder / "1", {"x": jnp.ones(3)})
            checkpointer.wait_until_finished()
            try:
                result = f"restored {checkpointer.restore(folder / '1')['x']}"
            except Exception as error:
                result, lost = f"cannot be restored: {str(error).splitlines()[0][:80]}", True
            print(f"{name}: glob finds {len([*epath.Path(folder).glob('f*')])} of 1 file; {result}")
    sys.exit(lost)


if __name__ == "__main__":
    main()
