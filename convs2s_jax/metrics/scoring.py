"""Score translations: the metrics, and a function that computes several of them.

BLEU (Papineni et al. 2002), chrF (Popović 2015) and TER (Snover et al. 2006) are those of sacreBLEU and come with its
signatures, so they are comparable with published scores. With several references, BLEU clips an n-gram's count at its
largest count in any of them and uses the closest reference length. chrF uses the best reference of each sentence. TER
uses the fewest edits to any reference and the mean reference length. ROUGE (Lin 2004) is that of the rouge-score
package of Google Research. Libraries are imported to compute a score only, so that decoding starts without them.
"""

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import metadata
from types import MappingProxyType
from typing import Any, NamedTuple

from convs2s_jax.core.config import check
from convs2s_jax.core.errors import UserError, counted, did_you_mean
from convs2s_jax.core.text import visible

TOKENIZERS = ("auto", "13a", "char", "intl", "none", "zh", "ja-mecab", "ko-mecab")
"""sacreBLEU's tokenisers that need no download, and "auto" (`tokenizer_of`)."""
PACKAGES = {"ja-mecab": "sacrebleu[ja]", "ko-mecab": "sacrebleu[ko]"}
"""Packages that some tokenisers need."""
_UNSPACED = ("THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")
_ROUGE = {"rouge1": "ROUGE-1", "rouge2": "ROUGE-2", "rougeL": "ROUGE-L"}


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
    check: Callable[[str], object] = lambda _: None
    less_is_better: bool = False


def _by_sacrebleu(
    name: str, title: str, hypotheses: Sequence[str], references: Sequence[Sequence[str]], tokenize: str
) -> list[Score]:
    """BLEU over the words of the tokeniser, chrF2 of the text without tokenisation, or TER of words in lower case."""
    metric = _sacrebleu(name, tokenize)
    value = metric.corpus_score(hypotheses, references).score
    return [Score(name.lower(), title, value, str(metric.get_signature()))]


def _sacrebleu(name: str, tokenize: str) -> Any:
    """A metric of sacreBLEU. Raises UserError if the tokeniser's package is missing."""
    from sacrebleu import metrics

    if name != "BLEU":
        return getattr(metrics, name)()
    try:
        return metrics.BLEU(tokenize=tokenize, force=True)  # no warning of its own about tokenised text: see `hint`
    except (ImportError, RuntimeError) as error:
        if tokenize not in PACKAGES:
            raise
        raise UserError(
            f"bleu_tokenize is '{tokenize}', which needs another package: pip install '{PACKAGES[tokenize]}'"
        ) from error


def _check_tokenizer(tokenize: str) -> None:
    """Raise UserError for an unknown tokeniser, or one whose package is missing. Most need none."""
    check(tokenize in TOKENIZERS, f"bleu_tokenize is '{tokenize}'{did_you_mean(tokenize, TOKENIZERS)}")
    if tokenize in PACKAGES:
        _sacrebleu("BLEU", tokenize)


def _exact(hypotheses: Sequence[str], references: Sequence[Sequence[str]], _tokenize: str) -> list[Score]:
    """The percentage of hypotheses that equal a reference, as in SCAN (Lake and Baroni 2018).

    White space counts as spaces, and leading, trailing and repeated spaces and invisible characters are ignored. No
    vocabulary keeps them, so no hypothesis could equal a reference that has them.
    """
    words = ([visible(text).split() for text in texts] for texts in (hypotheses, *references))
    hits = sum(hypothesis in given for hypothesis, *given in zip(*words, strict=True))
    count = len(hypotheses)
    return [Score("exact_match", "exact match", 100 * hits / count, f"% of {counted(count, 'sentence')}")]


def _rouge(hypotheses: Sequence[str], references: Sequence[Sequence[str]], _tokenize: str) -> list[Score]:
    """F1 of ROUGE-1, ROUGE-2 and ROUGE-L, averaged over all sentences.

    Words are lowercased, stemmed with the Porter stemmer and consist of Latin letters and digits, so the metric is for
    English. With several references, the best F1 counts for each sentence and kind (the package's `score_multi`).
    """
    scorer, count = _rouge_scorer(), len(hypotheses)
    totals = dict.fromkeys(_ROUGE, 0.0)
    for hypothesis, *given in zip(hypotheses, *references, strict=True):
        for kind, score in scorer.score_multi(given, hypothesis).items():
            totals[kind] += score.fmeasure
    note = f"F1, stemmed, best of {len(references)}|rouge-score {metadata.version('rouge-score')}"
    return [Score(kind.lower(), title, 100 * totals[kind] / count, note) for kind, title in _ROUGE.items()]


def _rouge_scorer(_tokenize: str = "") -> Any:
    try:
        from rouge_score import rouge_scorer
    except ImportError as error:
        raise UserError("the metric 'rouge' needs another package: pip install rouge-score") from error
    return rouge_scorer.RougeScorer(list(_ROUGE), use_stemmer=True)


def _d2l_bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]], _tokenize: str) -> list[Score]:
    """The mean of `d2l_bleu` in percent, with words split at white space, k = 4, and the best reference."""
    total = 0.0
    for hypothesis, *given in zip(hypotheses, *references, strict=True):
        total += max(d2l_bleu(visible(hypothesis).split(), visible(reference).split()) for reference in given)
    return [Score("d2l_bleu", "d2l BLEU", 100 * total / len(hypotheses), "mean of sentences, tok:none, k:4")]


def d2l_bleu(hypothesis: Sequence[str], reference: Sequence[str], k: int = 4) -> float:
    """Return the BLEU of a sentence, from 0 to 1, as "Dive into Deep Learning" defines it (Zhang et al.).

        BLEU = exp(min(0, 1 - len_ref / len_hyp)) * prod_{n=1}^{k} p_n^(1 / 2^n)

    p_n is the clipped n-gram precision, where an n-gram counts at most as often as it occurs in the reference. The
    exponent halves from n to n + 1, so longer n-grams have less weight; sacreBLEU's BLEU, which is for publication,
    weights all n equally and is computed on the whole corpus.

    A hypothesis of fewer than k words has no n-grams of some orders. These orders are skipped, so that a sentence equal
    to its reference always scores 1. (The formula does not define this case.) A hypothesis without words scores 0.

    Args:
      hypothesis, reference: words.
      k: maximum n-gram order.
    """
    if not hypothesis:
        return 0.0
    score = math.exp(min(0.0, 1 - len(reference) / len(hypothesis)))
    for n in range(1, min(k, len(hypothesis)) + 1):
        ours, theirs = _ngrams(hypothesis, n), _ngrams(reference, n)
        score *= ((ours & theirs).total() / ours.total()) ** (0.5**n)
    return score


def _ngrams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "bleu": Metric(("bleu",), partial(_by_sacrebleu, "BLEU", "BLEU"), _check_tokenizer),
        "chrf": Metric(("chrf",), partial(_by_sacrebleu, "CHRF", "chrF2")),
        "ter": Metric(("ter",), partial(_by_sacrebleu, "TER", "TER"), less_is_better=True),
        "exact": Metric(("exact_match",), _exact),
        "rouge": Metric(tuple(map(str.lower, _ROUGE)), _rouge, _rouge_scorer),
        "d2l_bleu": Metric(("d2l_bleu",), _d2l_bleu),
    }
)
DEFAULT = ("bleu", "chrf", "exact")


def score(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    metrics: Sequence[str] = DEFAULT,
    bleu_tokenize: str = "13a",
) -> dict[str, Score]:
    """Score hypotheses against one or more references.

    Args:
      hypotheses: detokenised sentences, without line ends.
      references: one or more lists, each with a text for every hypothesis.
      metrics: names from `METRICS`.
      bleu_tokenize: BLEU's tokeniser, one of `TOKENIZERS`.

    Returns:
      Scores by key, in the order of `metrics`.

    Raises:
      UserError: an unknown metric or tokeniser, a missing package, different numbers of lines, no references, or no
        lines.
    """
    check_metrics(metrics, bleu_tokenize)
    check(
        len(hypotheses) > 0 and len(references) > 0,
        "there are no sentences to score: hypotheses and references need at least one line",
    )
    for lines in references:
        check(
            len(hypotheses) == len(lines),
            f"there are {len(hypotheses)} hypotheses for {len(lines)} references: their numbers must be equal",
        )
    tokenize = tokenizer_of(references[0], bleu_tokenize)
    found = (s for name in metrics for s in METRICS[name].score(hypotheses, references, tokenize))
    return {s.key: s for s in found}


def tokenizer_of(references: Sequence[str], bleu_tokenize: str) -> str:
    """Return BLEU's tokeniser; for "auto", that of the script of most letters, because 13a splits at spaces.

    This is "ja-mecab" for Japanese ("char" without its package), "zh" for Chinese, "char" for Thai, Lao, Khmer, Burmese
    and Tibetan, and "13a" for all others.
    """
    if bleu_tokenize != "auto":
        return bleu_tokenize
    letters = (c for line in references[:1000] for c in line if c > "\u0e00" and c.isalpha())
    scripts = Counter(unicodedata.name(c, "").split(maxsplit=1)[0] for c in letters if unicodedata.name(c, ""))
    kana, others = scripts["HIRAGANA"] + scripts["KATAKANA"], sum(scripts[name] for name in _UNSPACED)
    unspaced = kana + scripts["CJK"] + others
    if 2 * unspaced <= sum(c.isalpha() for line in references[:1000] for c in line):
        return "13a"
    if 20 * kana < unspaced:
        return "zh" if scripts["CJK"] > others else "char"
    try:
        _check_tokenizer("ja-mecab")
    except UserError:
        return "char"
    return "ja-mecab"


def hint(references: Sequence[str], *, metrics: Sequence[str], bleu_tokenize: str, flag: str) -> str:
    """Return advice if BLEU should have another tokeniser.

    Most references end in a separate punctuation mark, although BLEU tokenises them again; or they are in a script
    without spaces.

    Args:
      references: the lines.
      metrics, bleu_tokenize: as in `score`.
      flag: the flag that sets `bleu_tokenize`, for the advice.

    Returns:
      A sentence, or "" if the tokeniser suits them.
    """
    if "bleu" in metrics and bleu_tokenize in ("auto", "13a") and (best := tokenizer_of(references, "auto")) != "13a":
        if bleu_tokenize == "13a":
            return f"the references have no spaces between words: {flag}=auto chooses BLEU's tokeniser {best}"
        mecab = f"; for Japanese, pip install '{PACKAGES['ja-mecab']}'" if best == "char" else ""
        return f"BLEU's tokeniser is {best}, by the script of the references{mecab}"
    ends = sum(line.endswith((" .", " ?", " !")) for line in references)
    if "bleu" not in metrics or bleu_tokenize == "none" or 2 * ends <= len(references):
        return ""
    return f"the references look tokenised; with {flag}=none, BLEU compares their words as they are"


def check_metrics(metrics: Sequence[str], bleu_tokenize: str) -> None:
    """Raise UserError before training if one of the metrics cannot be computed."""
    for name in metrics:
        check(name in METRICS, f"metrics contains '{name}'{did_you_mean(name, METRICS)}")
        METRICS[name].check(bleu_tokenize)


def report(scores: Mapping[str, Score]) -> str:
    """Return one line per score, with a note on how it was computed."""
    return "\n".join(f"{s.title:<11} {s.value:6.2f}  {s.note}" for s in scores.values())
