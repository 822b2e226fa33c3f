"""Scores of classification: accuracy and F1 (van Rijsbergen 1979), in percent."""

from collections import Counter
from collections.abc import Sequence

KEYS = ("accuracy", "macro_f1")
"""Names of the scores of a validation."""


def accuracy(found: Sequence[str], right: Sequence[str]) -> float:
    """Share of texts with the right label."""
    return 100 * sum(a == b for a, b in zip(found, right, strict=True)) / len(right)


def f1(found: Sequence[str], right: Sequence[str]) -> dict[str, float]:
    """F1 of each predicted or true label:  2 TP / (2 TP + FP + FN), the harmonic mean of precision and recall.

    Args:
      found: predicted labels.
      right: true labels, as many.

    Returns:
      F1 by label, sorted by code points; 0 for a label that was never predicted correctly.
    """
    hits = Counter(a for a, b in zip(found, right, strict=True) if a == b)
    given, true = Counter(found), Counter(right)
    return {label: 100 * 2 * hits[label] / (given[label] + true[label]) for label in sorted(given | true)}


def macro_f1(found: Sequence[str], right: Sequence[str]) -> float:
    """The mean of all labels' F1: each label has the same weight, however many texts have it."""
    values = f1(found, right).values()
    return sum(values) / len(values)
