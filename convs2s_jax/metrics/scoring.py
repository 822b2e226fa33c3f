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
SAMPLE = 1000
"""Number of references whose script chooses a tokeniser."""
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


Sums = list[Any]
"""Numbers that a score is computed from, summed over sentences."""


class Metric(NamedTuple):
    """A way to compare hypotheses with references.

    Attributes:
      keys: keys of its scores.
      sums: (hypotheses, references, tokenize) -> sums. `references` contains one or more lists, each with a text for
        every hypothesis. `tokenize` is BLEU's tokeniser; other metrics ignore it.
      scores: (sums, number of sentences, number of references, tokenize) -> scores.
      check: (tokenize) raises UserError if the metric cannot be computed, for example because a package is missing.
      less_is_better: whether its scores are error rates.
    """

    keys: tuple[str, ...]
    sums: Callable[[Sequence[str], Sequence[Sequence[str]], str], Sums]
    scores: Callable[[Sums, int, int, str], list[Score]]
    check: Callable[[str], object] = lambda _: None
    less_is_better: bool = False


def _sacrebleu_sums(name: str, hypotheses: Sequence[str], references: Sequence[Sequence[str]], tokenize: str) -> Sums:
    """BLEU over the words of the tokeniser, chrF2 of the text without tokenisation, or TER of words in lower case.

    sacreBLEU's `corpus_score` extracts these statistics of each sentence, and computes the score of their sums.
    """
    found = _sacrebleu(name, tokenize)._extract_corpus_statistics(hypotheses, references)
    return [sum(column) for column in zip(*found, strict=True)]


def _sacrebleu_scores(name: str, title: str, sums: Sums, _count: int, references: int, tokenize: str) -> list[Score]:
    metric = _sacrebleu(name, tokenize)
    metric.num_refs = references
    value = metric._aggregate_and_compute([sums]).score
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


def _exact(hypotheses: Sequence[str], references: Sequence[Sequence[str]], _tokenize: str) -> Sums:
    """The number of hypotheses that equal a reference, as in SCAN (Lake and Baroni 2018).

    White space counts as spaces, and leading, trailing and repeated spaces and invisible characters are ignored. No
    vocabulary keeps them, so no hypothesis could equal a reference that has them.
    """
    words = ([visible(text).split() for text in texts] for texts in (hypotheses, *references))
    return [sum(hypothesis in given for hypothesis, *given in zip(*words, strict=True))]


def _exact_score(sums: Sums, count: int, *_: Any) -> list[Score]:
    return [Score("exact_match", "exact match", 100 * sums[0] / count, f"% of {counted(count, 'sentence')}")]


def _rouge(hypotheses: Sequence[str], references: Sequence[Sequence[str]], _tokenize: str) -> Sums:
    """F1 of ROUGE-1, ROUGE-2 and ROUGE-L, whose means over all sentences are the scores.

    Words are lowercased, stemmed with the Porter stemmer and consist of Latin letters and digits, so the metric is for
    English. With several references, the best F1 counts for each sentence and kind (the package's `score_multi`).
    """
    scorer = _rouge_scorer()
    found = [scorer.score_multi(given, text) for text, *given in zip(hypotheses, *references, strict=True)]
    return [sum(each[kind].fmeasure for each in found) for kind in _ROUGE]


def _rouge_scores(sums: Sums, count: int, references: int, _tokenize: str) -> list[Score]:
    note = f"F1, stemmed, best of {references}|rouge-score {metadata.version('rouge-score')}"
    each = zip(_ROUGE.items(), sums, strict=True)
    return [Score(kind.lower(), title, 100 * total / count, note) for (kind, title), total in each]


def _rouge_scorer(_tokenize: str = "") -> Any:
    try:
        from rouge_score import rouge_scorer
    except ImportError as error:
        raise UserError("the metric 'rouge' needs another package: pip install rouge-score") from error
    return rouge_scorer.RougeScorer(list(_ROUGE), use_stemmer=True)


def _d2l_bleu(hypotheses: Sequence[str], references: Sequence[Sequence[str]], _tokenize: str) -> Sums:
    """The sum of `d2l_bleu`, with words split at white space, k = 4, and the best reference."""
    words = ([visible(text).split() for text in texts] for texts in (hypotheses, *references))
    return [sum(max(d2l_bleu(text, one) for one in given) for text, *given in zip(*words, strict=True))]


def _d2l_score(sums: Sums, count: int, *_: Any) -> list[Score]:
    return [Score("d2l_bleu", "d2l BLEU", 100 * sums[0] / count, "mean of sentences, tok:none, k:4")]


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
        **{
            name.lower(): Metric(
                (name.lower(),),
                partial(_sacrebleu_sums, name),
                partial(_sacrebleu_scores, name, title),
                _check_tokenizer if name == "BLEU" else lambda _: None,
                less_is_better=name == "TER",
            )
            for name, title in (("BLEU", "BLEU"), ("CHRF", "chrF2"), ("TER", "TER"))
        },
        "exact": Metric(("exact_match",), _exact, _exact_score),
        "rouge": Metric(tuple(map(str.lower, _ROUGE)), _rouge, _rouge_scores, _rouge_scorer),
        "d2l_bleu": Metric(("d2l_bleu",), _d2l_bleu, _d2l_score),
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
    check(
        len(hypotheses) > 0 and len(references) > 0,
        "there are no sentences to score: hypotheses and references need at least one line",
    )
    for lines in references:
        check(
            len(hypotheses) == len(lines),
            f"there are {len(hypotheses)} hypotheses for {len(lines)} references: their numbers must be equal",
        )
    scorer = Scorer(metrics, bleu_tokenize)
    scorer.add(hypotheses, references)
    return scorer.scores()


class Scorer:
    """Scores a text that comes in pieces, with the scores of the whole and without keeping it."""

    def __init__(self, metrics: Sequence[str], bleu_tokenize: str) -> None:
        """Count nothing yet. Arguments and errors are as in `score`."""
        check_metrics(metrics, bleu_tokenize)
        self._metrics, self._given, self._tokenize = metrics, bleu_tokenize, ""
        self._sums, self._head, self._count, self._ends = dict[str, Sums](), list[str](), 0, 0
        self._waiting = list[tuple[Sequence[str], Sequence[Sequence[str]]]]()

    def add(self, hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> None:
        """Add hypotheses, and one or more lists of their references. "auto" waits for `SAMPLE` references."""
        self._count += len(hypotheses)
        self._ends += sum(line.endswith((" .", " ?", " !")) for line in references[0])
        self._head += references[0][: SAMPLE - len(self._head)]
        self._waiting.append((hypotheses, references))
        if len(self._head) == SAMPLE or self._given != "auto":
            self._add_waiting()

    def _add_waiting(self) -> None:
        self._tokenize = self._tokenize or tokenizer_of(self._head, self._given)
        for piece in self._waiting:
            for name in self._metrics:
                found = METRICS[name].sums(*piece, self._tokenize)
                self._sums[name] = [a + b for a, b in zip(self._sums.get(name, [0] * len(found)), found, strict=True)]
            self._references = len(piece[1])
        self._waiting.clear()

    def scores(self) -> dict[str, Score]:
        """Return scores by key, in the order of the metrics. At least one line was added."""
        self._add_waiting()
        how = self._count, self._references, self._tokenize
        return {s.key: s for name in self._metrics for s in METRICS[name].scores(self._sums[name], *how)}

    def hint(self, flag: str) -> str:
        """Return advice if BLEU should have another tokeniser, or "" if it suits the references.

        Most references end in a separate punctuation mark, although BLEU tokenises them again; or they are in a script
        without spaces. `flag` sets the tokeniser, for the advice.
        """
        given, best = self._given, tokenizer_of(self._head, "auto")
        if "bleu" in self._metrics and given in ("auto", "13a") and best != "13a":
            if given == "13a":
                return f"the references have no spaces between words: {flag}=auto chooses BLEU's tokeniser {best}"
            mecab = f"; for Japanese, pip install '{PACKAGES['ja-mecab']}'" if best == "char" else ""
            return f"BLEU's tokeniser is {best}, by the script of the references{mecab}"
        if "bleu" not in self._metrics or given == "none" or 2 * self._ends <= self._count:
            return ""
        return f"the references look tokenised; with {flag}=none, BLEU compares their words as they are"


def tokenizer_of(references: Sequence[str], bleu_tokenize: str) -> str:
    """Return BLEU's tokeniser; for "auto", that of the script of most letters, because 13a splits at spaces.

    This is "ja-mecab" for Japanese ("char" without its package), "zh" for Chinese, "char" for Thai, Lao, Khmer, Burmese
    and Tibetan, and "13a" for all others.
    """
    if bleu_tokenize != "auto":
        return bleu_tokenize
    letters = (c for line in references[:SAMPLE] for c in line if c > "\u0e00" and c.isalpha())
    scripts = Counter(unicodedata.name(c, "").split(maxsplit=1)[0] for c in letters if unicodedata.name(c, ""))
    kana, others = scripts["HIRAGANA"] + scripts["KATAKANA"], sum(scripts[name] for name in _UNSPACED)
    unspaced = kana + scripts["CJK"] + others
    if 2 * unspaced <= sum(c.isalpha() for line in references[:SAMPLE] for c in line):
        return "13a"
    if 20 * kana < unspaced:
        return "zh" if scripts["CJK"] > others else "char"
    try:
        _check_tokenizer("ja-mecab")
    except UserError:
        return "char"
    return "ja-mecab"


def check_metrics(metrics: Sequence[str], bleu_tokenize: str) -> None:
    """Raise UserError before training if one of the metrics cannot be computed."""
    for name in metrics:
        check(name in METRICS, f"metrics contains '{name}'{did_you_mean(name, METRICS)}")
        METRICS[name].check(bleu_tokenize)


def report(scores: Mapping[str, Score]) -> str:
    """Return one line per score, with a note on how it was computed."""
    return "\n".join(f"{s.title:<11} {s.value:6.2f}  {s.note}" for s in scores.values())
