"""Compare texts: sacreBLEU scores with intervals and paired tests, by length and sentence, and words that differ."""

import difflib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from convs2s_jax.translation import alignment


class Measured(NamedTuple):
    """A score of a run.

    Attributes:
      run: its name.
      metric: BLEU, chrF2, chrF2++ or TER (lower is better).
      score: score over all sentences.
      low, high: 95 % interval of the score over resampled test sets.
      p: probability of a difference from the first run at least this large if there were none (paired bootstrap); None
        for the first run. For equal translations it is 1, not sacreBLEU's 1 / (resamples + 1).
      signature: how sacreBLEU computed it.
    """

    run: str
    metric: str
    score: float
    low: float
    high: float
    p: float | None
    signature: str


class Bin(NamedTuple):
    """Line numbers of sentences whose lengths are from `shortest` to `longest`."""

    shortest: int
    longest: int
    lines: tuple[int, ...]


def measure(
    texts: Mapping[str, Sequence[str]], references: Sequence[str], *, tokenize: str, resamples: int = 1000
) -> list[Measured]:
    """Score runs on the same sentences, and compare each with the first run (Koehn 2004).

    Args:
      texts: translations by run name.
      references: one for each translation; at least one.
      tokenize: BLEU's tokeniser.
      resamples: number of bootstrap samples.
    """
    from sacrebleu.significance import PairedTest

    names: list[tuple[str, Sequence[str]]] = [(str(i), list(found)) for i, found in enumerate(texts.values())]
    test: Any = PairedTest(names, _metrics(tokenize), [list(references)], test_type="bs", n_samples=resamples)
    signatures, found = test()
    first = list(next(iter(texts.values())))
    return [
        Measured(
            run=run,
            metric=metric,
            score=float(result.score),
            low=float(result.mean - result.ci),
            high=float(result.mean + result.ci),
            p=None if result.p_value is None else 1.0 if list(texts[run]) == first else float(result.p_value),
            signature=str(signatures[metric]),
        )
        for metric in signatures
        for run, result in zip(texts, found[metric], strict=True)
    ]


def by_length(
    texts: Sequence[str], references: Sequence[str], bins: Sequence[Bin], *, tokenize: str
) -> list[dict[str, float]]:
    """{"BLEU": score, "chrF2": score} for the sentences of each bin."""
    metrics = {name: metric for name, metric in _metrics(tokenize).items() if name in ("BLEU", "chrF2")}
    return [
        {
            name: metric.corpus_score([texts[i] for i in one.lines], [[references[i] for i in one.lines]]).score
            for name, metric in metrics.items()
        }
        for one in bins
    ]


def length_bins(lengths: Sequence[int], most: int = 6) -> list[Bin]:
    """At most `most` bins with about the same number of sentences. Sentences of equal length share a bin."""
    values = np.asarray(lengths, int)
    if not len(values):
        return []
    ends = np.unique(np.quantile(values, np.linspace(0, 1, most + 1)[1:], method="higher"))
    home = np.searchsorted(ends, values)
    lines = [np.flatnonzero(home == i) for i in range(len(ends))]
    return [Bin(int(values[own].min()), int(values[own].max()), tuple(own.tolist())) for own in lines]


def of_sentences(texts: Sequence[str], references: Sequence[str]) -> list[float]:
    """chrF2 of each sentence, which is also meaningful for short ones."""
    from sacrebleu.metrics import CHRF

    metric = CHRF()
    return [metric.sentence_score(text, [reference]).score for text, reference in zip(texts, references, strict=True)]


def _metrics(tokenize: str) -> dict[str, Any]:
    from sacrebleu.metrics import BLEU, CHRF, TER

    return {"BLEU": BLEU(tokenize=tokenize), "chrF2": CHRF(), "chrF2++": CHRF(word_order=2), "TER": TER()}


class Piece(NamedTuple):
    """A part of a text, and whether it consists of words that the other text does not have at this position."""

    text: str
    differs: bool


def differences(text: str, other: str) -> list[Piece]:
    """Split a text into pieces by whether they differ. Words are those of `alignment.words`, matched by difflib."""
    spans = alignment.words(text)
    own, others = [text[b:e] for b, e in spans], [other[b:e] for b, e in alignment.words(other)]
    matches = difflib.SequenceMatcher(None, own, others, autojunk=False).get_matching_blocks()
    same = {i for block in matches for i in range(block.a, block.a + block.size)}
    marks = [False] * len(text)
    for i, (begin, end) in enumerate(spans):
        if i not in same:
            # the space between two marked words is marked as well
            first = spans[i - 1][1] if i > 0 and i - 1 not in same else begin
            marks[first:end] = [True] * (end - first)
    grouped = itertools.groupby(zip(text, marks, strict=True), key=lambda pair: pair[1])
    return [Piece("".join(letter for letter, _ in pairs), differs) for differs, pairs in grouped]
