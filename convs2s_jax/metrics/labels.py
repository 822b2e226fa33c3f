"""Scores of classification: accuracy and F1 (van Rijsbergen 1979), in percent."""

from collections import Counter

KEYS = ("accuracy", "macro_f1")
"""Names of the validation scores."""


Pairs = Counter[tuple[str, str]]
"""Number of texts with each pair of a predicted and a true label."""


def accuracy(pairs: Pairs) -> float:
    """Return the percentage of texts with the correct label."""
    return 100 * sum(count for (a, b), count in pairs.items() if a == b) / pairs.total()


def f1(pairs: Pairs) -> dict[str, float]:
    """Return F1 of each predicted or true label, 2 TP / (2 TP + FP + FN), the harmonic mean of precision and recall.

    Labels are in code point order; a label that was never predicted correctly has 0.
    """
    each = Counter[str]()  # TP + FP + TP + FN
    for pair, count in pairs.items():
        for label in pair:
            each[label] += count
    return {label: 100 * 2 * pairs[label, label] / each[label] for label in sorted(each)}


def macro_f1(pairs: Pairs) -> float:
    """Return the mean F1 of all labels. Each label has the same weight, however many texts have it."""
    values = f1(pairs).values()
    return sum(values) / len(values)
