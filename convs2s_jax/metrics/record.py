"""What a metric is, and what it gives."""

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Score(NamedTuple):
    """One number of a corpus.

    key: its name in metrics.jsonl; title: in reports; value: from 0 to 100; note: how it was computed.
    """

    key: str
    title: str
    value: float
    note: str


class Metric(NamedTuple):
    """A way to compare hypotheses with references.

    score(hypotheses, references, tokenize) -> its numbers. `references` are one list or several, each with a text for
        every hypothesis; `tokenize` is BLEU's tokeniser, which others do not read.
    check(tokenize): raises UserError where it cannot be computed, a package being missing, say.
    """

    score: Callable[[Sequence[str], Sequence[Sequence[str]], str], list[Score]]
    check: Callable[[str], None] = lambda _: None
