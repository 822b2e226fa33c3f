"""The site of the documentation: what is laid out for it, and (as a drill) what is built and what its search finds."""

import importlib
import itertools
import subprocess
import sys

import pytest

from tests.tiny import ROOT

SITE = ROOT / "docs" / "_site"


@pytest.fixture(scope="module")
def module():
    """Imports a file of docs/_site by name, as its siblings do."""
    sys.path.insert(0, str(SITE))
    yield importlib.import_module
    sys.path.remove(str(SITE))


def test_every_page_has_a_place_in_the_navigation(module):
    nav = module("nav")
    there = {str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")} - {"docs/index.md"}
    listed = nav.pages()
    assert there <= {*listed}, "put these pages into a part of docs/_site/nav.py"
    assert len({*listed}) == len(listed)
    assert [name for name in listed if name not in nav.GENERATED and not (ROOT / name).is_file()] == []
    assert listed[0] == "docs/how-to/your-text.md"


def test_each_equation_names_code_that_exists(module):
    equations = module("equations")
    text = (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8")
    found = equations.names(text)
    assert text.count("\nCode: ") == len(found) > 15, "an equation stands right above its code"
    for name in itertools.chain.from_iterable(found):
        assert f"def {name.rpartition('.')[2]}(" in equations.source_of(name, ROOT)


@pytest.fixture(scope="session")
def built(tmp_path_factory):
    """The site, built as `make docs` does."""
    pytest.importorskip("furo", reason="pip install '.[docs]' installs what builds the site")
    folder = tmp_path_factory.mktemp("site")
    commands = [
        [str(SITE / "stage.py"), str(folder / "source")],
        ["-m", "sphinx", "-W", "--keep-going", "-q", "-E", "-b", "html", "-c", str(SITE)]
        + [str(folder / "source"), str(folder / "site")],
        [str(SITE / "links.py"), str(folder / "site")],
    ]
    makefile = (ROOT / "Makefile").read_text()
    assert "-m sphinx -W --keep-going -q -E -b html -c docs/_site build/docs site" in makefile
    for command in commands:
        done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder / "site"


@pytest.mark.drill
def test_the_site_builds_without_a_warning_and_every_link_in_it_leads_somewhere(built):
    front = (built / "index.html").read_text()
    for part in ("Start", "Tasks", "Manuals", "Reference", "The code", "Measured"):
        assert f'<span class="caption-text">{part}</span>' in front
    page = (built / "paper-map.html").read_text()
    code = (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8").count("\nCode: ")
    assert page.count('<math xmlns="http://www.w3.org/1998/Math/MathML" display="block"') >= code
    assert page.count("equation-and-code") == code
    assert 'href="reference/functions-of-the-paper-map.html#convs2s_jax.nn.convolution.glu"' in page
