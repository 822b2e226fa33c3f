"""BLEU of "Dive into Deep Learning": its worked example, and the formula written out."""

import math

import pytest

from convs2s_jax.metrics.scoring import d2l_bleu, score


def test_the_worked_example():
    """Reference ABCDEF, hypothesis ABBCD: p_1 = 4/5, p_2 = 3/4, p_3 = 1/3, p_4 = 0."""
    penalty = math.exp(1 - 6 / 5)
    precisions = [4 / 5, 3 / 4, 1 / 3, 0]
    for k in range(1, 5):
        expected = penalty * math.prod(p ** (1 / 2**n) for n, p in enumerate(precisions[:k], 1))
        assert d2l_bleu("ABBCD", "ABCDEF", k) == pytest.approx(expected)
    assert d2l_bleu("ABBCD", "ABCDEF", 3) > 0.5
    assert d2l_bleu("ABBCD", "ABCDEF", 4) == 0


def test_a_corpus_has_the_mean_of_its_sentences_and_the_best_reference():
    def value(hypotheses, *references):
        return score(hypotheses, references, metrics=["d2l_bleu"])["d2l_bleu"].value

    assert value(["a b", ""], ["a b", "c"]) == pytest.approx(50)
    assert value(["a b", "c d e f"], ["x", "c d e f"], ["a b", "y"]) == pytest.approx(100)
