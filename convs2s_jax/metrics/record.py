"""A metric and its scores."""

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Score(NamedTuple):
    """One score of a corpus.

    Attributes:
      key: name in metrics.jsonl.
      title: name in reports.
      value: between 0 and 100; an error rate may be higher.
      note: how it was computed.
    """

    key: str
    title: str
    value: float
    note: str


class Metric(NamedTuple):
    """A way to compare hypotheses with references.

    Attributes:
      keys: keys of its scores.
      score: (hypotheses, references, tokenize) -> scores. `references` contains one or more lists, each with a text for
        every hypothesis. `tokenize` is BLEU's tokeniser; other metrics ignore it.
      check: (tokenize) raises UserError if the metric cannot be computed, for example because a package is missing.
      less_is_better: whether its scores are error rates.
    """

    keys: tuple[str, ...]
    score: Callable[[Sequence[str], Sequence[Sequence[str]], str], list[Score]]
    check: Callable[[str], None] = lambda _: None
    less_is_better: bool = False
