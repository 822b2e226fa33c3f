"""Accuracy and F1 of labels, against an example by hand."""

from collections import Counter

import pytest

from convs2s_jax.metrics.labels import accuracy, f1, macro_f1


def test_an_example_by_hand():
    right = ["cat", "cat", "dog", "dog", "dog", "bird"]
    found = ["cat", "dog", "dog", "dog", "cat", "fish"]
    pairs = Counter(zip(found, right, strict=True))
    assert accuracy(pairs) == pytest.approx(50)
    # cat: 1 of 2 found, 1 of 2 right; dog: 2 of 3, 2 of 3; bird and fish never
    assert f1(pairs) == pytest.approx({"bird": 0, "cat": 50, "dog": 200 / 3, "fish": 0})
    assert list(f1(pairs)) == ["bird", "cat", "dog", "fish"]
    assert macro_f1(pairs) == pytest.approx((50 + 200 / 3) / 4)
