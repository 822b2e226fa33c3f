"""Scores of a report: those of sacreBLEU's command, intervals of resampling by loops, and what is marked."""

import itertools

import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from convs2s_jax.reporting import scores
from convs2s_jax.reporting.scores import differences
from convs2s_jax.translation import alignment

WORDS = ("one", "two", "three", "four", "five", "six", "seven")


@pytest.fixture(scope="module")
def texts():
    """References, good translations and worse ones."""
    rng = np.random.default_rng(0)
    references = [" ".join(rng.choice(WORDS, rng.integers(4, 9))) for _ in range(60)]

    def spoilt(share):
        return [" ".join(w if rng.random() > share else "wrong" for w in line.split()) for line in references]

    return references, spoilt(0.1), spoilt(0.35)


def test_scores_are_those_of_sacrebleu(texts):
    references, good, bad = texts
    found = scores.measure({"a": good, "b": bad}, references, tokenize="13a", resamples=50)
    by = {(one["run"], one["metric"]): one for one in found}
    for run, lines in (("a", good), ("b", bad)):
        assert by[run, "BLEU"]["score"] == pytest.approx(sacrebleu.corpus_bleu(lines, [references]).score)
        assert by[run, "chrF2"]["score"] == pytest.approx(sacrebleu.corpus_chrf(lines, [references]).score)
        assert by[run, "chrF2++"]["score"] == pytest.approx(
            sacrebleu.corpus_chrf(lines, [references], word_order=2).score
        )
        assert by[run, "TER"]["score"] == pytest.approx(sacrebleu.corpus_ter(lines, [references]).score)
    assert by["a", "BLEU"]["p"] is None
    assert by["b", "BLEU"]["p"] < 0.05
    assert "tok:13a" in by["a", "BLEU"]["signature"]


def test_intervals_are_those_of_resampling_by_a_loop(texts):
    references, good, _ = texts
    [found] = [
        one for one in scores.measure({"a": good}, references, tokenize="13a", resamples=400) if one["metric"] == "TER"
    ]
    rng = np.random.default_rng(1)
    edits = [sacrebleu.sentence_ter(text, [line]).num_edits for text, line in zip(good, references, strict=True)]
    lengths = [len(line.split()) for line in references]
    drawn = []
    for _ in range(400):
        rows = rng.integers(0, len(good), len(good))
        drawn.append(100 * sum(edits[i] for i in rows) / sum(lengths[i] for i in rows))
    assert (found["low"], found["high"]) == pytest.approx(tuple(np.percentile(drawn, [2.5, 97.5])), abs=1.0)
    assert found["low"] < found["score"] < found["high"]


TEXTS = st.lists(st.sampled_from(["the", "a", "house", "3.5", ",", "  ", "ß", "日本語", "don't", "\u2028"]), max_size=8)


@pytest.mark.parametrize(
    ("text", "other", "marked"),
    [
        ("14. November 2048", "14. November 2048", []),
        ("14. Mai 2048", "14. November 2048", ["Mai"]),
        ("am 3. Mai um 5 Uhr", "am 4. Juni um 5 Uhr", ["3", "Mai"]),
        ("words only here", "", ["words only here"]),
        ("", "anything", []),
        ("東京に行く", "東京へ行く", ["に"]),
    ],
)
def test_what_the_other_text_does_not_have_is_marked(text, other, marked):
    pieces = differences(text, other)
    joined = "".join(piece.text for piece in pieces if piece.differs)
    assert joined.replace(" ", "") == "".join(marked).replace(" ", "")
    assert "".join(piece.text for piece in pieces) == text


@settings(max_examples=60, deadline=None)
@given(TEXTS, TEXTS)
def test_pieces_are_the_text_and_the_rest_is_common(own, others):
    text, other = " ".join(own), "".join(others)
    pieces = differences(text, other)
    assert "".join(piece.text for piece in pieces) == text
    assert all(a.differs != b.differs for a, b in itertools.pairwise(pieces))
    words = iter([other[b:e] for b, e in alignment.words(other)])
    plain = [w for piece in pieces if not piece.differs for w in _words(piece.text)]
    assert all(word in words for word in plain)  # a common subsequence: each is found after the one before


def _words(text):
    return [text[b:e] for b, e in alignment.words(text)]
