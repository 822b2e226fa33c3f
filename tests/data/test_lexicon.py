"""IBM model 1 against the equations in dictionaries and loops."""

from collections import defaultdict

import numpy as np
import pytest

from convs2s_jax.core.tokens import EOS
from convs2s_jax.data import lexicon
from convs2s_jax.data.tokens_on_disk import TokenizedText

SIZE, COUNT = 12, 40
ROWS = np.asarray([i for i in range(COUNT) if i % 7])


def store(seed, shortest):
    """Sentences of a few words; some are empty."""
    random = np.random.default_rng(seed)
    lengths = random.integers(shortest, 6, COUNT)
    tokens = random.integers(4, SIZE, lengths.sum()).astype(np.uint16)
    return TokenizedText(tokens, np.concatenate([[0], np.cumsum(lengths)]))


SRC, TGT = store(0, 0), store(1, 0)


def in_loops(iterations, start=None):
    """p(t | s) by the letter, from equal probabilities or those of `start`; pairs that it has not stay at zero."""
    pairs = [(SRC[i].tolist(), TGT[i].tolist()) for i in ROWS]
    pairs = [([*s, EOS], t) for s, t in pairs if s and t]
    p = {
        (s, t): start.get((s, t), 0.0) if start else 1.0 for sources, targets in pairs for s in sources for t in targets
    }
    for _ in range(iterations):
        counts, totals = defaultdict(float), defaultdict(float)
        for sources, targets in pairs:
            for t in targets:
                norm = sum(p[s, t] for s in sources) or 1.0
                for s in sources:
                    counts[s, t] += p[s, t] / norm
                    totals[s] += p[s, t] / norm
        p = {(s, t): c / totals[s] for (s, t), c in counts.items()}
    return p


@pytest.mark.parametrize("events", [1, 60, 1 << 23])
@pytest.mark.parametrize("iterations", [1, 4])
def test_probabilities_are_those_of_the_equations_in_loops(monkeypatch, iterations, events):
    """However many pairs of words are in memory at once."""
    monkeypatch.setattr(lexicon, "EVENTS", events)
    found = lexicon.learn(SRC, TGT, ROWS, target_size=SIZE, iterations=iterations)
    expected = in_loops(iterations)
    assert [divmod(key, SIZE) for key in found.keys.tolist()] == sorted(expected)
    np.testing.assert_allclose(found.probabilities, [expected[pair] for pair in sorted(expected)], rtol=1e-9)


def test_the_likely_words_are_the_most_probable_ones():
    found = lexicon.learn(SRC, TGT, ROWS, target_size=SIZE, iterations=3)
    words, offsets = lexicon.likely(found, source_size=SIZE + 2, target_size=SIZE, count=3)
    expected = in_loops(3)
    for s in range(SIZE + 2):
        ranked = sorted((t for a, t in expected if a == s), key=lambda t: -expected[s, t])
        assert set(words[offsets[s] : offsets[s + 1]].tolist()) == set(ranked[:3])


def test_too_many_pairs_of_words_keep_the_most_frequent_of_each_source_word(monkeypatch):
    monkeypatch.setattr(lexicon, "MOST", 40)
    monkeypatch.setattr(lexicon, "EVENTS", 60)
    found = lexicon.learn(SRC, TGT, ROWS, target_size=SIZE, iterations=2)
    assert len(found.keys) <= 40 < len(in_loops(1))
    assert {*(found.keys // SIZE).tolist()} == {s for s, _ in in_loops(1)}
    first = lexicon.learn(SRC, TGT, ROWS, target_size=SIZE, iterations=1)
    expected = in_loops(1, start={divmod(int(key), SIZE): p for key, p in zip(*first, strict=True)})
    pairs = [divmod(key, SIZE) for key in found.keys.tolist()]
    np.testing.assert_allclose(found.probabilities, [expected[pair] for pair in pairs], rtol=1e-9)
