"""Asks for every page of other sites that the documentation links to: `make links`.

Without a network it says so and ends with status 0: then nothing is known, and nothing is wrong with the documents.
"""

import re
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = re.compile(r"\]\((https?://[^)\s]+)\)")
PROBE = "arxiv.org"
"""The paper's own host: where it has no address, there is no network."""


def addresses() -> dict[str, list[str]]:
    """Addresses that Markdown pages link to, and the pages."""
    found: dict[str, list[str]] = {}
    places = [ROOT, ROOT / "benchmarks", ROOT / "launch"]
    pages = [page for place in places for page in sorted(place.glob("*.md"))]
    for page in [*pages, *sorted((ROOT / "docs").rglob("*.md"))]:
        for address in ADDRESS.findall(page.read_text(encoding="utf-8")):
            found.setdefault(address, []).append(str(page.relative_to(ROOT)))
    return found


def malformed(address: str) -> bool:
    """Whether an address cannot be right: no host with a dot, or a space or an angle bracket in it."""
    parts = urlsplit(address)
    return parts.scheme not in ("http", "https") or "." not in parts.netloc or bool(re.search(r"[\s<>\"]", address))


def faults(found: dict[str, list[str]]) -> Iterator[str]:
    """A sentence for each address that does not answer."""
    for address, pages in sorted(found.items()):
        request = urllib.request.Request(address, headers={"User-Agent": "Mozilla/5.0 (link check)"})
        try:
            with urllib.request.urlopen(request, timeout=20):
                pass
        except urllib.error.HTTPError as error:
            if error.code not in (403, 405, 429):  # a host that wants no programs is there
                yield f"{address} answers {error.code}: {', '.join(pages)}"
        except OSError as error:
            yield f"{address} does not answer ({error}): {', '.join(pages)}"


def main() -> int:
    """Check all; the status is 1 where one does not answer."""
    found = addresses()
    wrong = [f"{address} is no address: {', '.join(pages)}" for address, pages in found.items() if malformed(address)]
    try:
        socket.getaddrinfo(PROBE, 443)
    except OSError:
        print(f"There is no network here: {len(found)} addresses were read, none was asked for.")  # noqa: T201
    else:
        wrong += faults(found)
    for sentence in wrong:
        print(sentence, file=sys.stderr)  # noqa: T201
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
