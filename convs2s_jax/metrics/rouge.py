"""ROUGE-1, ROUGE-2 and ROUGE-L (Lin 2004), by the rouge-score package of Google Research."""

from collections.abc import Sequence
from importlib import metadata
from typing import Any

from convs2s_jax.core.errors import UserError
from convs2s_jax.metrics.record import Metric, Score

KINDS = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}


def rouge(hypotheses: Sequence[str], references: Sequence[Sequence[str]], _tokenize: str) -> list[Score]:
    """Return F1 of each kind, averaged over all sentences.

    Words are lowercased, stemmed with the Porter stemmer and consist of Latin letters and digits, so the metric is for
    English. With several references, the best F1 counts for each sentence and kind (the package's `score_multi`).

    Raises:
      UserError: the package is missing.
    """
    scorer, count = _scorer(), len(hypotheses)
    totals = dict.fromkeys(KINDS, 0.0)
    for hypothesis, *given in zip(hypotheses, *references, strict=True):
        for kind, score in scorer.score_multi(given, hypothesis).items():
            totals[kind] += score.fmeasure
    note = f"F1, stemmed, best of {len(references)}|rouge-score {metadata.version('rouge-score')}"
    return [Score(kind.lower(), title, 100 * totals[kind] / count, note) for kind, title in KINDS.items()]


def _scorer() -> Any:
    try:
        from rouge_score import rouge_scorer
    except ImportError as error:
        raise UserError("the metric 'rouge' needs another package: pip install rouge-score") from error
    return rouge_scorer.RougeScorer(list(KINDS), use_stemmer=True)


def _check(_tokenize: str) -> None:
    _scorer()


METRIC = Metric(tuple(map(str.lower, KINDS)), rouge, _check)
