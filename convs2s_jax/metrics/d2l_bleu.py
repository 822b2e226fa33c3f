"""Sentence BLEU as defined in "Dive into Deep Learning" (Zhang et al., chapter on sequence to sequence learning).

    BLEU = exp(min(0, 1 - len_ref / len_hyp)) * prod_{n=1}^{k} p_n^(1 / 2^n)

p_n is the clipped n-gram precision, where an n-gram counts at most as often as it occurs in the reference. The exponent
halves from n to n + 1, so longer n-grams have less weight. For publication use sacreBLEU's BLEU, which is computed on
the whole corpus and weights all n equally.
"""

import math
from collections import Counter
from collections.abc import Sequence


def sentence(hypothesis: Sequence[str], reference: Sequence[str], k: int = 4) -> float:
    """Return the BLEU of one hypothesis, from 0 to 1.

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
