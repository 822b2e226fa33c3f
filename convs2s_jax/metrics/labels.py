"""Scores of classification: accuracy and F1 (van Rijsbergen 1979), in percent."""

from collections import Counter
from collections.abc import Sequence

KEYS = ("accuracy", "macro_f1")
"""Names of the validation scores."""


def accuracy(found: Sequence[str], right: Sequence[str]) -> float:
    """Return the percentage of texts with the correct label."""
    return 100 * sum(a == b for a, b in zip(found, right, strict=True)) / len(right)


def f1(found: Sequence[str], right: Sequence[str]) -> dict[str, float]:
    """Return F1 of each predicted or true label, 2 TP / (2 TP + FP + FN), the harmonic mean of precision and recall.

    Args:
      found: predicted labels.
      right: true labels, the same number.

    Returns:
      F1 by label, in code point order; 0 for a label that was never predicted correctly.
    """
    hits = Counter(a for a, b in zip(found, right, strict=True) if a == b)
    given, true = Counter(found), Counter(right)
    return {label: 100 * 2 * hits[label] / (given[label] + true[label]) for label in sorted(given | true)}


def macro_f1(found: Sequence[str], right: Sequence[str]) -> float:
    """Return the mean F1 of all labels. Each label has the same weight, however many texts have it."""
    values = f1(found, right).values()
    return sum(values) / len(values)
