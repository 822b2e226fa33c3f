"""Documents: their length, lines, tables, links, and the files, functions and tests that they name."""

import importlib
import re
from pathlib import Path

import pytest

from tests.tiny import ROOT

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "launch" / "README.md"]
FOLDERS = ("convs2s_jax", "configs", "benchmarks", "examples", "notebooks", "docs", "tests")
every_page = pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def read(name: str | Path) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def prose(path: str | Path) -> list[str]:
    """Lines outside blocks of code."""
    return re.sub(r"^```.*?^```", "", read(path), flags=re.MULTILINE | re.DOTALL).splitlines()


def anchors(path: Path) -> set[str]:
    """Names of headings, as GitHub makes them."""
    headings = [line.lstrip("#").strip().lower() for line in prose(path) if re.match(r"#+ ", line)]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


def test_documents_stay_short():
    words = {path.relative_to(ROOT): len(read(path).split()) for path in PAGES}
    assert words[Path("README.md")] <= 700
    assert sum(words.values()) <= 40_000


@every_page
def test_lines_and_tables_are_narrow(path):
    assert [line for line in read(path).splitlines() if len(line) > 160] == []
    rows = [line for line in prose(path) if line.startswith("|")]
    assert [row for row in rows if len(re.findall(r"(?<!\\)\|", row)) > 7] == []


@pytest.mark.parametrize("name", ["results.md", "performance.md"])
def test_tables_of_numbers_have_a_caption_and_are_numbered(name):
    text = "\n".join(prose(f"docs/{name}"))
    numbers = re.findall(r"\n\n\*\*Table (\d+)\. [^|]*?\n\n\|", text)
    assert numbers == [str(n) for n in range(1, text.count("\n|---") + 1)]


@every_page
def test_relative_links_lead_to_files_and_headings(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", "\n".join(prose(path))):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        file = path.parent / name if name else path
        assert file.exists(), target
        assert not anchor or anchor in anchors(file), target


@every_page
def test_files_that_a_document_names_exist(path):
    """Those of a folder of the repository by their path, those in backticks by their name alone."""
    text = read(path)
    named = re.findall(rf"(?<![\w/])((?:{'|'.join(FOLDERS)})/[\w*/-]+\.(?:py|md|ipynb|svg))\b", text)
    missing = [name for name in named if not list(ROOT.glob(name))]
    for name in re.findall(r"`([\w*-]+\.(?:py|md|ipynb))`", text):
        if not any(list((ROOT / folder).rglob(name)) for folder in FOLDERS) and not list(ROOT.glob(name)):
            missing.append(name)
    assert missing == []


def test_names_that_python_of_the_documents_imports_exist():
    text = "\n".join(read(path) for path in PAGES)
    found = re.findall(r"^ *from (convs2s_jax[\w.]*) import ([\w, ]+?)(?:  #.*)?$", text, re.MULTILINE)
    assert len(found) > 10
    for module, names in found:
        for name in names.split(", "):
            assert hasattr(importlib.import_module(module), name) or importlib.import_module(f"{module}.{name}")


def test_every_function_and_test_of_the_paper_map_exists():
    rows = re.findall(r"\| `([\w.]+)` \| `(tests/[\w/.]+)` \|", read("docs/paper-map.md"))
    assert len(rows) > 50
    for name, test in rows:
        module, _, attribute = name.rpartition(".")
        assert hasattr(importlib.import_module(f"convs2s_jax.{module}"), attribute), name
        assert (ROOT / test).is_file(), test


def test_the_lines_of_files_in_the_reading_list_are_about_right():
    rows = re.findall(r"^\| `([\w/]+\.py)` \| (\d+) \|", read("docs/read-the-code.md"), re.MULTILINE)
    assert len(rows) > 20
    now = {name: len(read(f"convs2s_jax/{name}").splitlines()) for name, _ in rows}
    assert {name: now[name] for name, lines in rows if abs(int(lines) - now[name]) > max(5, now[name] // 10)} == {}


def test_the_encoder_of_the_page_that_extends_joins_any_decoder():
    [code] = re.findall(r"```python\n(.*?)```", read("docs/extend.md"), re.DOTALL)
    names: dict = {}
    exec(compile(code.replace("64", "8"), "docs/extend.md", "exec"), names)
    convs2s, cfg, jax = names["convs2s"], names["cfg"], names["jax"]
    params = convs2s.init(jax.random.key(0), cfg, source_vocabulary=50, target_vocabulary=50)
    batch = convs2s.Batch(src=jax.numpy.array([[5, 6, 7, 2]]), tgt=jax.numpy.array([[8, 9, 2]]))
    gradient = jax.jit(jax.grad(lambda params: convs2s.loss(params, cfg, batch).loss))(params)
    assert jax.numpy.abs(gradient.encoder.linear.w).max() > 0


def test_the_library_section_of_readme_runs():
    """Its functions; tests/translation/test_docs.py runs the lines before them, which need a trained model."""
    _, code = re.findall(r"```python\n(.*?)```", read("README.md"), re.DOTALL)
    for large, small in (("64", "8"), ("] * 4", "]"), ("] * 3", "]"), ("1000", "50")):  # to compile less
        code = code.replace(large, small)
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["logits"].shape == (1, 3, 50)
    assert len(names["found"]) == 1
