"""Documents are short, narrow and linked: README's length, lines, tables, links, and the files that they name."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md")), ROOT / "launch" / "README.md"]
FOLDERS = ("convs2s_jax", "configs", "benchmarks", "examples", "notebooks", "docs", "tests")
MEASURED = ("results.md", "performance.md", "performance-log.md", "data.md")
every_page = pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def prose(path: Path) -> list[str]:
    """Lines outside blocks of code."""
    kept, inside = [], False
    for line in read(path).splitlines():
        fence = line.startswith("```")
        inside ^= fence
        if not inside and not fence:
            kept.append(line)
    return kept


def anchors(path: Path) -> set[str]:
    """Names of headings, as GitHub makes them."""
    headings = [line.lstrip("#").strip().lower() for line in prose(path) if re.match(r"#+ ", line)]
    return {re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in headings}


def test_readme_has_at_most_900_words():
    assert len(read(ROOT / "README.md").split()) <= 900


@every_page
def test_no_line_is_longer_than_160_characters(path):
    assert [line for line in read(path).splitlines() if len(line) > 160] == []


@every_page
def test_tables_have_at_most_six_columns(path):
    rows = [line for line in prose(path) if line.startswith("|")]
    assert [row for row in rows if len(re.findall(r"(?<!\\)\|", row)) > 7] == []


@pytest.mark.parametrize("name", MEASURED)
def test_tables_of_numbers_have_a_caption_and_are_numbered(name):
    lines = prose(ROOT / "docs" / name)
    starts = [i for i, line in enumerate(lines) if line.startswith("|") and not lines[i - 1].startswith("|")]
    assert starts
    for number, i in enumerate(starts, 1):
        assert lines[i - 2].startswith(f"**Table {number}. "), lines[i]


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
    """Those of a folder of the repository by their path, those in backticks by their name alone; drills below tests."""
    text = read(path)
    folders = "|".join(FOLDERS)
    missing = [
        name
        for name in re.findall(rf"(?<![\w/])((?:{folders})/[\w*/-]+\.(?:py|md|ipynb|svg))\b", text)
        if not list(ROOT.glob(name)) and not (ROOT / "tests" / name).is_file()
    ]
    for name in re.findall(r"`([\w*-]+\.(?:py|md|ipynb))`", text):
        if not any(list((ROOT / folder).rglob(name)) for folder in FOLDERS) and not list(ROOT.glob(name)):
            missing.append(name)
    assert missing == []


def test_the_library_section_of_readme_runs():
    """Its functions; tests/translation/test_docs.py runs the lines before them, which need a trained model."""
    _, code = re.findall(r"```python\n(.*?)```", read(ROOT / "README.md"), re.DOTALL)
    for large, small in (("64", "8"), ("] * 4", "]"), ("] * 3", "]"), ("1000", "50")):  # to compile less
        code = code.replace(large, small)
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["logits"].shape == (1, 3, 50)
    assert len(names["found"]) == 1
