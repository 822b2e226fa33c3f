"""What documents name exists: functions, tests, files."""

import importlib
import re
from pathlib import Path

import pytest

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


@pytest.mark.parametrize(
    "path", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda path: path.name
)
def test_every_file_that_a_document_names_exists(path):
    text = path.read_text(encoding="utf-8")
    named = re.findall(r"\b((?:configs|benchmarks|tests|docs|convs2s_jax)/[\w/.-]+\.(?:py|md))\b", text)
    missing = [name for name in named if not (ROOT / name).is_file() and name != "configs/FILE.py"]
    assert not missing
