"""ROUGE: the package's numbers against counts by hand, means, several references, a missing package."""

import sys

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.metrics.scoring import score


def rouge(hypotheses, *references):
    pytest.importorskip("rouge_score")
    return {key: s.value for key, s in score(hypotheses, references, metrics=["rouge"]).items()}


def f1(hits, ours, theirs):
    return 100 * 2 * hits / (ours + theirs)


def test_an_example_by_hand():
    found = rouge(["police killed the gunman", "a b"], ["police kill the gunman now", "c"])
    # killed and kill have one stem; unigrams 4 of 4 and 5, bigrams 3 of 3 and 4, common subsequence 4; then nothing
    expected = {"rouge1": f1(4, 4, 5) / 2, "rouge2": f1(3, 3, 4) / 2, "rougel": f1(4, 4, 5) / 2}
    assert found == pytest.approx(expected)


def test_the_order_of_words_counts_for_the_longest_common_subsequence():
    found = rouge(["the gunman police killed"], ["police killed the gunman"])
    assert found == pytest.approx({"rouge1": 100, "rouge2": f1(2, 3, 3), "rougel": 50})


def test_of_several_references_the_best_counts_for_each_line():
    one, other = ["red car", "nothing here"], ["blue sky today", "green tree"]
    hypotheses = ["red car", "green tree"]
    assert rouge(hypotheses, one, other) == pytest.approx({"rouge1": 100, "rouge2": 100, "rougel": 100})
    assert rouge(hypotheses, one)["rouge1"] == pytest.approx(50)


def test_an_empty_hypothesis_scores_nothing():
    assert set(rouge([""], ["a reference"]).values()) == {0}


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rouge_score", None)
    with pytest.raises(UserError, match=r"^the metric 'rouge' needs another package: pip install rouge-score$"):
        score(["a"], [["a"]], metrics=["rouge"])
