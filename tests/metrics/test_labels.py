"""Accuracy and F1 of labels, against an example by hand and against precision and recall counted anew."""

import random

import pytest

from convs2s_jax.metrics.labels import accuracy, f1, macro_f1


def test_an_example_by_hand():
    right = ["cat", "cat", "dog", "dog", "dog", "bird"]
    found = ["cat", "dog", "dog", "dog", "cat", "fish"]
    assert accuracy(found, right) == pytest.approx(50)
    # cat: 1 of 2 found, 1 of 2 right; dog: 2 of 3, 2 of 3; bird and fish never
    assert f1(found, right) == pytest.approx({"bird": 0, "cat": 50, "dog": 200 / 3, "fish": 0})
    assert list(f1(found, right)) == ["bird", "cat", "dog", "fish"]
    assert macro_f1(found, right) == pytest.approx((50 + 200 / 3) / 4)


@pytest.mark.parametrize("seed", range(5))
def test_f1_is_the_harmonic_mean_of_precision_and_recall(seed):
    rng = random.Random(seed)
    right, found = (rng.choices("abcd", k=40) for _ in range(2))
    for label, value in f1(found, right).items():
        hits = [a == b for a, b in zip(found, right, strict=True) if a == label]
        caught = [a == b for a, b in zip(found, right, strict=True) if b == label]
        precision, recall = sum(hits) / len(hits), sum(caught) / len(caught)
        expected = 2 * precision * recall / (precision + recall) if precision + recall else 0
        assert value == pytest.approx(100 * expected)
