"""Compare texts: sacreBLEU scores with intervals and paired tests, scores of sentences, and words that differ."""

import difflib
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from convs2s_jax.metrics.scoring import tokenizer_of
from convs2s_jax.translation import alignment


def measure(
    texts: Mapping[str, Sequence[str]], references: Sequence[str], *, tokenize: str, resamples: int = 1000
) -> list[dict[str, Any]]:
    """Score runs on the same sentences, and compare each with the first run (Koehn 2004).

    Args:
      texts: translations by run name.
      references: one for each translation; at least one.
      tokenize: BLEU's tokeniser, or "auto".
      resamples: number of bootstrap samples.

    Returns:
      For each run and metric (BLEU, chrF2, chrF2++ and TER, of which lower is better) the score over all sentences, its
      95 % interval `low` to `high` over resampled test sets, and sacreBLEU's signature. `p` is the probability of a
      difference from the first run at least this large if there were none (paired bootstrap); None for the first run.
      For equal translations it is 1, not sacreBLEU's 1 / (resamples + 1).
    """
    from sacrebleu.metrics import BLEU, CHRF, TER
    from sacrebleu.significance import PairedTest

    bleu = BLEU(tokenize=tokenizer_of(references, tokenize))
    metrics: Any = {"BLEU": bleu, "chrF2": CHRF(), "chrF2++": CHRF(word_order=2), "TER": TER()}
    names: list[tuple[str, Sequence[str]]] = [(str(i), list(found)) for i, found in enumerate(texts.values())]
    test: Any = PairedTest(names, metrics, [list(references)], test_type="bs", n_samples=resamples)
    signatures, found = test()
    first = list(next(iter(texts.values())))
    return [
        {
            "run": run,
            "metric": metric,
            "score": result.score,
            "low": result.mean - result.ci,
            "high": result.mean + result.ci,
            "p": 1.0 if result.p_value is not None and list(texts[run]) == first else result.p_value,
            "signature": str(signatures[metric]),
        }
        for metric in signatures
        for run, result in zip(texts, found[metric], strict=True)
    ]


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
