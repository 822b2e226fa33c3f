"""Workdirs of an earlier version, one for each kind of model: runs of four updates (tests/test_old_workdirs.py)."""

import json
import tarfile
from pathlib import Path

from convs2s_jax.core.checksums import seal, unseal

FOLDER = Path(__file__).parent / "reference" / "workdirs"
KINDS = sorted(path.name.removesuffix(".tar.xz") for path in FOLDER.iterdir())
LINES = ["5 kilowatts", "", "Norway and Spain", "1 2 3 4 5 6", "at 12:30", "£5.00"]
"""The lines of their translations.jsonl."""


def normalizing(workdir: Path, *rules: str) -> None:
    """Make a workdir one whose text was normalised."""
    path = workdir / "config.json"
    values = unseal(json.loads(path.read_text()))
    path.write_text(json.dumps(seal({**values, "data": {**values["data"], "normalize": rules}})))


def unpacked(kind: str, folder: Path) -> Path:
    """Unpack a workdir into a folder; returns its path."""
    with tarfile.open(FOLDER / f"{kind}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / kind
