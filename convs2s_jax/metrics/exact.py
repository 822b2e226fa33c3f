"""Exact match: the share of hypotheses that equal a reference, as SCAN is scored (Lake and Baroni 2018)."""

from collections.abc import Sequence

from convs2s_jax.metrics.record import Metric, Score


def exact_match(hypotheses: Sequence[str], references: Sequence[Sequence[str]], _tokenize: str) -> list[Score]:
    """Percent of the hypotheses that equal a reference.

    Spaces (U+0020) at the ends of a line and several in a row do not count: no vocabulary keeps them, so that no
    hypothesis could equal a reference that has them.
    """
    words = ([[word for word in text.split(" ") if word] for text in texts] for texts in (hypotheses, *references))
    hits = sum(hypothesis in given for hypothesis, *given in zip(*words, strict=True))
    count = len(hypotheses)
    return [Score("exact_match", "exact match", 100 * hits / count, f"% of {count} sentences")]


METRIC = Metric(("exact_match",), exact_match)
