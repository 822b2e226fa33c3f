"""docs/paper-map.md names functions and tests that exist."""

import importlib
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
ROWS = re.findall(
    r"\| `(?:convs2s_jax\.)?([\w.]+)` \| `(tests/[\w/.]+)` \|",
    (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8"),
)


def test_every_function_and_test_of_the_map_exists():
    assert len(ROWS) > 20
    for name, test in ROWS:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(f"convs2s_jax.{module}"), attribute), name
        assert (ROOT / test).is_file(), test
