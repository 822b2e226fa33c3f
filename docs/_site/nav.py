"""The parts of the site, and where each page of the repository lies on it."""

from pathlib import PurePosixPath

PARTS: dict[str, tuple[str, ...]] = {
    "Start": ("docs/how-to/your-text.md", "docs/tutorial.md"),
    "Tasks": (
        "docs/how-to/big-corpus.md",
        "docs/how-to/back-translation.md",
        "docs/how-to/classifier.md",
        "docs/how-to/pod.md",
    ),
    "Manuals": (
        "docs/data.md",
        "docs/training.md",
        "docs/decoding.md",
        "docs/serving.md",
        "docs/export.md",
        "docs/report.md",
        "docs/attention.md",
        "docs/fairseq.md",
        "docs/distributed.md",
        "launch/README.md",
        "docs/object-stores.md",
        "docs/scaling.md",
    ),
    "Reference": (
        "docs/models.md",
        "docs/library.md",
        "docs/reference/index.md",
        "docs/commands.md",
        "docs/configuration.md",
    ),
    "The code": (
        "docs/read-the-code.md",
        "docs/paper-map.md",
        "docs/extend.md",
        "docs/decisions.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
    ),
    "Measured": (
        "docs/results.md",
        "docs/performance.md",
        "benchmarks/peer.md",
        "docs/reproducibility.md",
        "docs/reliability.md",
    ),
}
"""Heading of each part and its pages in order, as paths in the repository."""
GENERATED = ("docs/reference/index.md",)
"""Pages that a build makes: nothing of the kind is in the repository."""
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/peer.md": "peer.md",
    "launch/README.md": "launch.md",
}
"""Pages outside docs/ and their places on the site; links to README lead to the front page, which stands for it."""


def place_of(path: str) -> str | None:
    """Where a page of the repository lies on the site; None for a file that is no page of it."""
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    inside = PurePosixPath(path)
    if inside.parts[:1] == ("docs",) and inside.suffix == ".md":
        return str(inside.relative_to("docs"))
    return None


def pages() -> list[str]:
    """All pages but the front page, in order, as paths in the repository."""
    return [page for part in PARTS.values() for page in part]
