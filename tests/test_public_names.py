"""The public names of the package: they come lazily, exist, and are documented."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import convs2s_jax

ROOT = Path(__file__).parents[1]
SHAPED = {"Batch", "beam_search", "classifier_logits", "decode", "decoder_inputs", "encode", "force", "request", "loss"}
"""What takes or returns arrays with axes of their own, unlike trees, keys and single numbers."""
LIBRARY = (ROOT / "docs" / "library.md").read_text()


def test_importing_the_package_imports_no_library():
    """Without them it takes a few milliseconds."""
    code = "import sys, convs2s_jax; print(*{'jax', 'numpy', 'flax', 'sacrebleu'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "\n"


@pytest.mark.parametrize("name", convs2s_jax.__all__)
def test_a_public_name_resolves_and_is_documented(name):
    value = getattr(convs2s_jax, name)
    assert callable(value)
    assert name in dir(convs2s_jax)
    assert inspect.getdoc(value)
    assert re.search(rf"^\| `{name}` \|", LIBRARY, re.MULTILINE), "docs/library.md has a line for each public name"
    if name in SHAPED:
        assert re.search(r"\[[A-Z.]", inspect.getdoc(value)), "the docstring tells no shapes"


def test_type_checkers_see_the_same_names_as_python():
    block = next(node for node in ast.parse(Path(convs2s_jax.__file__).read_text()).body if isinstance(node, ast.If))
    seen = {a.asname or a.name: f"{node.module}.{a.name}" for node in block.body for a in node.names}
    assert seen == {name: f"convs2s_jax.{place}" for name, place in convs2s_jax._PLACES.items()}


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"^module 'convs2s_jax' has no attribute 'serach'"):
        convs2s_jax.serach  # noqa: B018
