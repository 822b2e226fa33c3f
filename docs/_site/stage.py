"""Lays the pages of the repository out as the source of the site: `python docs/_site/stage.py FOLDER`.

The pages stay as a code host shows them. On the way into FOLDER links between them are turned to their places on the
site, files of the repository that they link to come along, and pages are added that are made of the source code.
"""

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import equations
import library
import nav

ROOT = Path(__file__).resolve().parents[2]
LINK = re.compile(r"(!?\[(?:[^\]\[]|\[[^\]]*\])*\]\()([^)\s]+)(\))")
NAMED = re.compile(r"(?<![\w/\[])docs/([\w/-]+\.md)\b(?!\])")
"""A page that prose names without a link, as descriptions of fields do."""
CODE = re.compile(r"(^```.*?^```|^(?: {4}.*\n)+|``[^`]+``|`[^`\n]+`)", re.MULTILINE | re.DOTALL)


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """The text with a change made to all but blocks and pieces of code."""
    parts = CODE.split(text)
    # a link's own text may be code: it is put back before the change
    held: list[str] = []
    joined = "".join(part if i % 2 == 0 else _hold(held, part) for i, part in enumerate(parts))
    return re.sub("\0(\\d+)\0", lambda found: held[int(found[1])], change(joined))


def _hold(held: list[str], part: str) -> str:
    held.append(part)
    return f"\0{len(held) - 1}\0"


def turned(text: str, page: str) -> tuple[str, set[str]]:
    """A page's text with its links as they are on the site, and the files of the repository that it links to.

    Args:
      text: Markdown.
      page: path of the page in the repository.
    """
    here = nav.place_of(page) or page
    files: set[str] = set()

    def target(link: str) -> str:
        if re.match(r"[a-z]+:|#", link):
            return link
        path, hash_sign, anchor = link.partition("#")
        known = os.path.normpath(os.path.join(os.path.dirname(page), path))
        place = nav.place_of(known)
        if place is None:
            files.add(known)
            place = file_place(known)
        return os.path.relpath(place, os.path.dirname(here) or ".") + hash_sign + anchor

    def change(part: str) -> str:
        part = LINK.sub(lambda m: m[1] + target(m[2]) + m[3], part)
        return NAMED.sub(lambda m: f"[{m[0]}]({os.path.relpath(m[1], os.path.dirname(here) or '.')})", part)

    return outside_code(text, change), files


def file_place(path: str) -> str:
    """Where a file that is no page lies on the site: pictures of docs/ where they are, others below files/."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}"


def toctree(pages: list[str], caption: str = "") -> str:
    """A hidden table of contents, from which Sphinx makes the navigation."""
    head = [f":caption: {caption}"] if caption else []
    return "\n".join(["", "```{toctree}", ":hidden:", *head, "", *pages, "```", ""])


def stage(folder: Path) -> None:
    """Fill the folder, which is emptied first."""
    shutil.rmtree(folder, ignore_errors=True)
    written = library.pages(ROOT)
    files: set[str] = set()
    for page in ["docs/index.md", *nav.pages()]:
        if page in nav.GENERATED:
            continue
        text, linked = turned((ROOT / page).read_text(encoding="utf-8"), page)
        files |= linked
        written[nav.place_of(page) or page] = text
    written["paper-map.md"] = equations.with_code(library.linked(written["paper-map.md"], ROOT), ROOT)
    for caption, pages in nav.PARTS.items():
        written["index.md"] += toctree([nav.place_of(page) or page for page in pages], caption)
    for name, text in written.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for name in files:
        path = folder / file_place(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, path)


if __name__ == "__main__":
    stage(Path(sys.argv[1]))
