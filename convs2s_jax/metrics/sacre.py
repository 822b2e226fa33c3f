"""BLEU (Papineni et al. 2002), chrF (Popović 2015) and TER (Snover et al. 2006) of a whole corpus, by sacreBLEU.

The scores are sacreBLEU's and come with its signatures, so they are comparable with published scores. With several
references, BLEU clips an n-gram's count at its largest count in any of them and uses the closest reference length. chrF
uses the best reference of each sentence. TER uses the fewest edits to any reference and the mean reference length.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError, did_you_mean
from convs2s_jax.metrics.record import Metric, Score

if TYPE_CHECKING:
    from sacrebleu.metrics import BLEU  # imported only to compute a score, so that decoding starts without it

TOKENIZERS = ("13a", "char", "intl", "none", "zh", "ja-mecab", "ko-mecab")
"""sacreBLEU's tokenisers that need no download."""

PACKAGES = {"ja-mecab": "sacrebleu[ja]", "ko-mecab": "sacrebleu[ko]"}
"""Packages that some tokenisers need."""


def bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]], tokenize: str) -> list[Score]:
    """Return BLEU over the words of the tokeniser.

    Raises:
      UserError: an unknown tokeniser, or one whose package is missing.
    """
    _check(tokenize)
    metric = _bleu(tokenize)
    value = metric.corpus_score(hypotheses, references).score
    return [Score("bleu", "BLEU", value, str(metric.get_signature()))]


def chrf(hypotheses: Sequence[str], references: Sequence[Sequence[str]], _tokenize: str) -> list[Score]:
    """Return chrF2 of the text without tokenisation."""
    from sacrebleu.metrics import CHRF

    metric = CHRF()
    value = metric.corpus_score(hypotheses, references).score
    return [Score("chrf", "chrF2", value, str(metric.get_signature()))]


def ter(hypotheses: Sequence[str], references: Sequence[Sequence[str]], _tokenize: str) -> list[Score]:
    """Return the translation edit rate: insertions, deletions, substitutions and phrase shifts per 100 reference words.

    Words are split at white space and lowercased.
    """
    from sacrebleu.metrics import TER

    metric = TER()
    value = metric.corpus_score(hypotheses, references).score
    return [Score("ter", "TER", value, str(metric.get_signature()))]


def _bleu(tokenize: str) -> "BLEU":
    from sacrebleu.metrics import BLEU

    try:
        return BLEU(tokenize=tokenize, force=True)  # no warning of its own about tokenised text: see `scoring.hint`
    except (ImportError, RuntimeError) as error:
        if tokenize not in PACKAGES:
            raise
        raise UserError(
            f"bleu_tokenize is '{tokenize}', which needs another package: pip install '{PACKAGES[tokenize]}'"
        ) from error


def _check(tokenize: str) -> None:
    """Raise UserError if `_bleu` would. Most tokenisers need no package."""
    check(tokenize in TOKENIZERS, f"bleu_tokenize is '{tokenize}'{did_you_mean(tokenize, TOKENIZERS)}")
    if tokenize in PACKAGES:
        _bleu(tokenize)


BLEU_METRIC = Metric(("bleu",), bleu, _check)
CHRF_METRIC = Metric(("chrf",), chrf)
TER_METRIC = Metric(("ter",), ter, less_is_better=True)
