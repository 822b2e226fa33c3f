"""Where fairseq's golden numbers lie: a few in the repository, all of them beside it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

COPIED = Path(__file__).parent / "reference"
WHOLE = Path(__file__).parents[2] / "shared" / "golden"


def load(name: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Arrays and description of a case; the test is skipped where neither place has it."""
    for folder in (COPIED, WHOLE):
        if (folder / f"{name}.npz").exists():
            with np.load(folder / f"{name}.npz", allow_pickle=False) as arrays:
                return dict(arrays), json.loads((folder / f"{name}.json").read_text())
    pytest.skip(f"{name} is in the whole golden set only, ../shared/golden, which is absent here")
