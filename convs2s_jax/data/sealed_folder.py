"""Checksums of the files in a folder, stored next to them in checksums.json."""

import json
from pathlib import Path

from convs2s_jax.core import files
from convs2s_jax.core.checksums import DamagedError, checksum, parsed, seal, unseal
from convs2s_jax.core.errors import UserError

NAME = "checksums.json"


def write(folder: Path) -> None:
    """Write the checksums of all files in a folder. Raises OSError if it cannot be written."""
    sums = {path.name: checksum(path.read_bytes()) for path in sorted(folder.iterdir())}
    (folder / NAME).write_text(json.dumps(seal(sums), indent=2) + "\n", encoding="utf-8")


def verify(folder: Path) -> None:
    """Verify the files in a folder by its checksums, if there are any.

    Raises:
      UserError: a file or the list of checksums differs from what was written.
    """
    path = folder / NAME
    if not path.exists():
        return  # written by an earlier version or by another program
    try:
        sums = unseal(parsed(files.content(path)))
    except (DamagedError, OSError) as error:
        raise UserError(
            f"{path} is damaged ({error}): restore it, or delete it if the files next to it are correct"
        ) from error
    for name, expected in sums.items():
        file = folder / name
        try:
            found = checksum(files.content(file))
        except OSError as error:
            raise UserError(f"{file} cannot be read ({error.strerror}): restore it") from error
        if found != expected:
            raise UserError(
                f"{file} is damaged or was edited (its checksum does not match its content): restore it, or delete "
                f"{path} to keep deliberate edits"
            )
