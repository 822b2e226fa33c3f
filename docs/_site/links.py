"""Checks a built site: `python docs/_site/links.py site`.

Every link within the site leads to a file and an anchor that exist, and no page loads anything from elsewhere.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

LOADS = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "object": "data"}
STYLE_LINKS = {"stylesheet", "icon", "preload", "modulepreload", "manifest"}


class Page(NamedTuple):
    """What a page offers and asks for.

    Attributes:
      anchors: the ids of its elements.
      links: where its links lead.
      loaded: what a browser loads to show it.
    """

    anchors: frozenset[str]
    links: frozenset[str]
    loaded: frozenset[str]


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.loaded: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect ids, links and what is loaded."""
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "link" and STYLE_LINKS & set(values.get("rel", "").split()):
            self.loaded.add(values.get("href", ""))
        elif tag in ("a", "link") and "href" in values:
            self.links.add(values["href"])
        elif tag in LOADS and LOADS[tag] in values:
            self.loaded.add(values[LOADS[tag]])


def read(text: str) -> Page:
    """Read a page's HTML."""
    reader = _Reader()
    reader.feed(text)
    return Page(frozenset(reader.anchors), frozenset(reader.links), frozenset(reader.loaded))


def faults(folder: Path) -> list[str]:
    """What is wrong with the links of a site, a sentence each."""
    pages = {path.resolve(): read(path.read_text(encoding="utf-8")) for path in folder.rglob("*.html")}
    found = []
    for path, page in sorted(pages.items()):
        name = path.relative_to(folder.resolve())
        for link in sorted(page.links | page.loaded):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in page.loaded and parts.scheme != "data":
                    found.append(f"{name} loads {link}: a page shows without a network")
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if target.is_dir():
                target /= "index.html"
            if not target.is_file():
                found.append(f"{name} links to {link}: there is no such file")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].anchors:
                found.append(f"{name} links to {link}: there is no such heading")
    return found


def main(folder: str) -> int:
    """Print what is wrong; the status is 1 where anything is."""
    wrong = faults(Path(folder))
    for sentence in wrong:
        print(sentence, file=sys.stderr)  # noqa: T201
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
