"""The four parts of the site, and where each page of the repository lies on it."""

from pathlib import PurePosixPath

PARTS: dict[str, tuple[str, ...]] = {
    "Tutorial": ("docs/tutorial.md",),
    "How to": (
        "docs/how-to/pod.md",
        "docs/how-to/big-corpus.md",
        "docs/how-to/classifier.md",
        "docs/how-to/back-translation.md",
        "docs/data.md",
        "docs/training.md",
        "docs/decoding.md",
        "docs/attention.md",
        "docs/report.md",
        "docs/serving.md",
        "docs/export.md",
        "docs/fairseq.md",
        "docs/distributed.md",
        "launch/README.md",
        "docs/object-stores.md",
        "docs/library.md",
    ),
    "Reference": (
        "docs/commands.md",
        "docs/configuration.md",
        "docs/reference/index.md",
        "docs/models.md",
    ),
    "Explanation": (
        "docs/equations.md",
        "docs/paper-map.md",
        "docs/results.md",
        "docs/performance.md",
        "docs/performance-log.md",
        "docs/parallel.md",
        "docs/scaling.md",
        "docs/reliability.md",
        "docs/drills.md",
        "docs/reproducibility.md",
        "docs/decisions/index.md",
        "benchmarks/peer.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
    ),
}
"""Heading of each part and its pages in order, as paths in the repository."""
GENERATED = ("docs/reference/index.md", "docs/decisions/index.md")
"""Pages that a build makes: nothing of the kind is in the repository."""
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/peer.md": "peer.md",
    "launch/README.md": "launch.md",
    "docs/decisions": "decisions/index.md",
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
