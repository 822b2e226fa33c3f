"""Workdirs of an earlier version, one for each kind of model: runs of four updates (tests/test_old_workdirs.py)."""

import tarfile
from pathlib import Path

FOLDER = Path(__file__).parent / "reference" / "workdirs"
KINDS = sorted(path.name.removesuffix(".tar.xz") for path in FOLDER.iterdir())
LINES = ["5 kilowatts", "", "Norway and Spain", "1 2 3 4 5 6", "at 12:30", "£5.00"]
"""The lines of their translations.jsonl."""


def unpacked(kind: str, folder: Path) -> Path:
    """Unpack a workdir into a folder; returns its path."""
    with tarfile.open(FOLDER / f"{kind}.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder / kind
