"""Each mutation of `mutations.py` makes its test fail: the tests see what they are there for."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).parents[1]
COPIED = ("convs2s_jax", "tests", "configs", "examples", "setup.cfg", "train.py", "decode.py")
FAILED = 1
"""Exit status of pytest if a test failed; others mean that none was found, or that one could not be loaded."""


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_each_place_is_there_once_and_its_test_exists(mutation: Mutation):
    found = (ROOT / "convs2s_jax" / mutation.file).read_text().count(mutation.old)
    assert found == 1, f"{mutation.file} has {mutation.old!r} {found} times: update the entry in tests/mutations.py"
    assert (ROOT / "tests" / mutation.test[0]).is_file(), f"update the test of {mutation.name!r} in tests/mutations.py"


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the tests need, beside the same shared files."""
    place = tmp_path_factory.mktemp("mutations")
    for name in COPIED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, place / "tree" / name)
    if (ROOT.parent / "shared").exists():
        (place / "shared").symlink_to(ROOT.parent / "shared")
    return place / "tree"


@pytest.mark.drill
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_each_mutation_is_caught(tree: Path, mutation: Mutation):
    file, (test, *options) = tree / "convs2s_jax" / mutation.file, mutation.test
    whole = file.read_text()
    file.write_text(whole.replace(mutation.old, mutation.new))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", f"tests/{test}", *options]
    environment = os.environ | {"PYTHONPATH": str(tree)}
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=600)
    finally:
        file.write_text(whole)
    assert done.returncode == FAILED, f"{mutation.name} survives:\n{done.stdout[-2000:]}"
