"""Words that differ: pieces are the whole text, and what is not marked is found in the other text in this order."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convs2s_jax.reporting.words import Piece, differences
from convs2s_jax.translation import alignment

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


def test_neighbouring_words_that_differ_are_one_piece():
    assert differences("a b c d", "a d") == [Piece("a ", False), Piece("b c", True), Piece(" d", False)]


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
