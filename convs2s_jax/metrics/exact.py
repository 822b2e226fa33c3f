"""Exact match: the fraction of hypotheses that equal a reference, as in SCAN (Lake and Baroni 2018)."""

from collections.abc import Sequence

from convs2s_jax.core.errors import counted
from convs2s_jax.metrics.record import Metric, Score


def exact_match(hypotheses: Sequence[str], references: Sequence[Sequence[str]], _tokenize: str) -> list[Score]:
    """Return the percentage of hypotheses that equal a reference.

    Leading, trailing and repeated spaces (U+0020) are ignored. No vocabulary keeps them, so no hypothesis could equal a
    reference that has them.
    """
    words = ([[word for word in text.split(" ") if word] for text in texts] for texts in (hypotheses, *references))
    hits = sum(hypothesis in given for hypothesis, *given in zip(*words, strict=True))
    count = len(hypotheses)
    return [Score("exact_match", "exact match", 100 * hits / count, f"% of {counted(count, 'sentence')}")]


METRIC = Metric(("exact_match",), exact_match)
