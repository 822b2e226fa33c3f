"""How good translations are: BLEU (Papineni et al. 2002), chrF (Popović 2015) and exact match, of a whole corpus.

The numbers are sacrebleu's and come with its signatures, so that they can be compared with published ones.
"""

import dataclasses
from collections.abc import Sequence

from sacrebleu.metrics import BLEU, CHRF

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError, did_you_mean

TOKENIZERS = ("13a", "char", "intl", "none", "zh", "ja-mecab", "ko-mecab")
"""sacrebleu's tokenisers that need no download."""

PACKAGES = {"ja-mecab": "sacrebleu[ja]", "ko-mecab": "sacrebleu[ko]"}
"""What has to be installed for some of them."""


@dataclasses.dataclass(frozen=True)
class Scores:
    """Scores of a corpus; BLEU, chrF and exact match from 0 to 100."""

    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    exact_match: float
    sentences: int


def score(hypotheses: Sequence[str], references: Sequence[str], *, bleu_tokenize: str = "13a") -> Scores:
    """Compare translations with one reference each.

    Args:
      hypotheses: detokenised sentences, without line ends.
      references: as many.
      bleu_tokenize: how BLEU finds words, one of `TOKENIZERS`; chrF and exact match look at the text as it is.

    Raises:
      UserError: an unknown tokeniser, one whose package is missing, numbers of lines that differ, or no lines.
    """
    bleu = _bleu(bleu_tokenize)
    check(
        len(hypotheses) == len(references),
        f"there are {len(hypotheses)} hypotheses for {len(references)} references: each line needs its line",
    )
    check(len(references) > 0, "there are no sentences to score: hypotheses and references need at least one line")
    chrf = CHRF()
    exact = sum(hypothesis == reference for hypothesis, reference in zip(hypotheses, references, strict=True))
    return Scores(
        bleu=bleu.corpus_score(hypotheses, [references]).score,
        bleu_signature=str(bleu.get_signature()),
        chrf=chrf.corpus_score(hypotheses, [references]).score,
        chrf_signature=str(chrf.get_signature()),
        exact_match=100 * exact / len(references),
        sentences=len(references),
    )


def check_tokenizer(name: str) -> None:
    """Raise UserError now, not after hours of training, where BLEU could not be computed with this tokeniser."""
    _bleu(name)


def report(scores: Scores) -> str:
    """Scores in three lines, with the signatures that say how they were computed."""
    return "\n".join(
        (
            f"BLEU        {scores.bleu:6.2f}  {scores.bleu_signature}",
            f"chrF2       {scores.chrf:6.2f}  {scores.chrf_signature}",
            f"exact match {scores.exact_match:6.2f}  % of {scores.sentences} sentences",
        )
    )


def _bleu(tokenize: str) -> BLEU:
    check(tokenize in TOKENIZERS, f"bleu_tokenize is '{tokenize}'{did_you_mean(tokenize, TOKENIZERS)}")
    try:
        return BLEU(tokenize=tokenize)
    except (ImportError, RuntimeError) as error:
        if tokenize not in PACKAGES:
            raise
        raise UserError(
            f"bleu_tokenize is '{tokenize}', which needs another package: pip install '{PACKAGES[tokenize]}'"
        ) from error
