"""Exact match: the share of hypotheses that equal a reference, as SCAN is scored (Lake and Baroni 2018)."""

from collections.abc import Sequence

from convs2s_jax.metrics.record import Metric, Score


def exact_match(hypotheses: Sequence[str], references: Sequence[Sequence[str]], _tokenize: str) -> list[Score]:
    """Percent of the hypotheses that equal a reference."""
    hits = sum(hypothesis in given for hypothesis, *given in zip(hypotheses, *references, strict=True))
    count = len(hypotheses)
    return [Score("exact_match", "exact match", 100 * hits / count, f"% of {count} sentences")]


METRIC = Metric(exact_match)
