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


@pytest.mark.parametrize(
    ("page", "link", "place"),
    [
        ("docs/how-to/pod.md", "../../launch/README.md#what-was-tested", "../launch.md#what-was-tested"),
        ("launch/README.md", "../docs/distributed.md", "distributed.md"),
        ("docs/paper-map.md", "../convs2s_jax/nn/convolution.py", "files/convs2s_jax/nn/convolution.py"),
        ("docs/index.md", "https://arxiv.org/abs/1705.03122", "https://arxiv.org/abs/1705.03122"),
    ],
)
def test_links_of_a_code_host_become_links_of_the_site(module, page, link, place):
    stage = pytest.importorskip("griffe") and module("stage")
    text, files = stage.turned(f"See [`it`]({link}).\n\n```\n[no]({link})\n```\nNor `[x]({link})`.\n", page)
    assert text == f"See [`it`]({place}).\n\n```\n[no]({link})\n```\nNor `[x]({link})`.\n"
    assert files == ({link.removeprefix("../")} if link.endswith(".py") else set())


def test_each_equation_names_code_that_exists(module):
    equations = module("equations")
    text = (ROOT / "docs" / "paper-map.md").read_text(encoding="utf-8")
    found = equations.names(text)
    assert text.count("\nCode: ") == len(found) > 15, "an equation stands right above its code"
    for name in itertools.chain.from_iterable(found):
        assert f"def {name.rpartition('.')[2]}(" in equations.source_of(name, ROOT)


def test_code_beside_an_equation_is_the_function_without_its_docstring(module):
    code = module("equations").source_of("nn.convolution.glu", ROOT)
    assert code.splitlines() == [
        "def glu(x: Array) -> Array:",
        "    a, b = jnp.split(x, 2, axis=-1)",
        "    return a * jax.nn.sigmoid(b)",
    ]
    with pytest.raises(LookupError, match="has no function or class 'gul'"):
        module("equations").source_of("nn.convolution.gul", ROOT)


def test_links_that_lead_nowhere_and_what_is_loaded_from_elsewhere_are_found(module, tmp_path):
    links = module("links")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "index.html").write_text('<h1 id="top">B</h1>')
    (tmp_path / "a.html").write_text(
        '<a href="b/#top">1</a> <a href="b/index.html#bottom">2</a> <a href="c.html">3</a> <a href="https://x.org">4</a>'
        '<script src="https://cdn.org/x.js"></script><img src="data:image/png;base64,"><a href="#here"></a>'
    )
    assert links.faults(tmp_path) == [
        "a.html links to #here: there is no such heading",
        "a.html links to b/index.html#bottom: there is no such heading",
        "a.html links to c.html: there is no such file",
        "a.html loads https://cdn.org/x.js: a page shows without a network",
    ]


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
