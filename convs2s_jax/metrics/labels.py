"""How good labels are: accuracy and F1 (van Rijsbergen 1979), all in percent."""

from collections import Counter
from collections.abc import Sequence


def accuracy(found: Sequence[str], right: Sequence[str]) -> float:
    """Share of texts with the right label."""
    return 100 * sum(a == b for a, b in zip(found, right, strict=True)) / len(right)


def f1(found: Sequence[str], right: Sequence[str]) -> dict[str, float]:
    """F1 of each label that was found or is right:  2 TP / (2 TP + FP + FN), the harmonic mean of precision and recall.

    Args:
      found: labels given.
      right: as many true ones.

    Returns:
      In the order of the labels' code points; 0 for a label that was never right.
    """
    hits = Counter(a for a, b in zip(found, right, strict=True) if a == b)
    given, true = Counter(found), Counter(right)
    return {label: 100 * 2 * hits[label] / (given[label] + true[label]) for label in sorted(given | true)}


def macro_f1(found: Sequence[str], right: Sequence[str]) -> float:
    """The mean of all labels' F1: each label counts alike, however many texts have it."""
    values = f1(found, right).values()
    return sum(values) / len(values)
