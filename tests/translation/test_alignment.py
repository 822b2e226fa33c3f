"""Alignments and unknown words, where others were off by one, out of bounds, or lost in sub-words."""

import io

import numpy as np
import pytest
import sentencepiece

from convs2s_jax.core.tokens import UNK
from convs2s_jax.data.pieces import ListedPieces, of_model
from convs2s_jax.data.symbols import Vocabulary, word_list
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.search.translate import Candidate
from convs2s_jax.translation.alignment import UNKNOWN, pairs, replace_unknown, words
from convs2s_jax.translation.results import text_of


def looking_at(*columns, width):
    """Attention that looks at one column in each row."""
    return np.eye(width, dtype=np.float32)[list(columns)]


def test_pairs_are_what_a_loop_finds():
    attention = np.random.default_rng(0).random((6, 9)).astype(np.float32)
    expected = []
    for t in range(5):
        best = 0
        for s in range(8):
            if attention[t, s] > attention[t, best]:
                best = s
        expected.append((best, t))
    assert pairs(attention) == tuple(expected)


def test_nothing_is_aligned_with_nothing():
    """Nor a token that looked at nothing, as all of a decoder without attention do."""
    for shape in ((0, 0), (1, 1), (1, 4), (4, 1)):
        assert pairs(np.ones(shape, np.float32)) == ()
    assert pairs(None) == ()
    attention = np.zeros((4, 3), np.float32)
    attention[1] = [0.0, 1.0, 0.0]
    attention[2, -1] = 1.0
    assert pairs(attention) == ((1, 1), (0, 2))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("  ", []),
        ("Herr Kočić, komm!", ["Herr", "Kočić", ",", "komm", "!"]),
        ("don't pay 3.5% (now)", ["don't", "pay", "3.5", "%", "(", "now", ")"]),
        ("$5 हिन्दी e\u0301t\u00e9.", ["$5", "हिन्दी", "e\u0301t\u00e9", "."]),
        ("東京タワー OK", ["東", "京", "タ", "ワ", "ー", "OK"]),
        ("...«wait»", ["...«", "wait", "»"]),
    ],
)
def test_words_are_without_the_punctuation_around_them(text, expected):
    assert [text[b:e] for b, e in words(text)] == expected


U = UNKNOWN
PIECES = [" Herr", " Ko", "č", "i", "ć", ",", " ", "Ž", "uti", " 東京", "に", " "]


@pytest.mark.parametrize(
    ("text", "looks", "expected"),
    [
        (f"Mr {U}, come", [2], "Mr Kočić, come"),  # the comma stays
        (f"Mr Ko{U}i{U}, come", [1, 4], "Mr Kočić, come"),  # known pieces of an unknown word go
        (f"Mr {U} {U} come", [1, 4], "Mr Kočić come"),  # neighbours of one source word: once
        (f"Mr {U} {U} come", [1, 0], "Mr Kočić Herr come"),
        (f"Ko{U}i{U} {U}, come", [1, 4, 0], "Kočić Herr, come"),
        (f"{U} and {U}", [1, 1], "Kočić and Kočić"),
        (f"{U}", [6], "Žuti"),
        (f"これは{U}{U}です", [9, 9], "これは東京です"),  # no spaces: what stands beside it stays
        (f"({U})", [7], "(Žuti)"),
        ("nothing", [], "nothing"),
    ],
)
def test_unknown_words_become_source_words(text, looks, expected):
    assert replace_unknown(text, looking_at(*looks, width=len(PIECES)), PIECES, {}) == expected


def test_unknown_pieces_of_a_word_look_together():
    """0.5 + 0.5 at one token is more than 0.6 at another."""
    attention = np.array([[0.6, 0.4, 0.0], [0.0, 0.5, 0.5]], np.float32)
    assert replace_unknown(f"{U}{U}", attention, [" a", " b", " c"], {}) == "b"


def test_words_of_tokens_are_what_a_loop_finds():
    rng = np.random.default_rng(0)
    for _ in range(100):
        surfaces = ["".join(rng.choice(list(" ab.日"), rng.integers(0, 4))) for _ in range(rng.integers(1, 9))]
        found = words("".join(surfaces))
        for token, surface in enumerate(surfaces):
            begin = len("".join(surfaces[:token]))
            end = begin + len(surface)
            touched = [span for span in found if span[0] < end and begin < span[1]]
            touched = touched or [span for span in found if span[0] >= begin][:1] or [(begin, end)]
            word = "".join(surfaces)[touched[0][0] : touched[-1][1]].strip()
            assert replace_unknown(U, looking_at(token, width=len(surfaces)), surfaces, {}) == (
                word.strip(" .") or word
            )


# --- through whole vocabularies


def learned(unknown):
    """A SentencePiece model that knows few letters."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the old house, the old man and an oak", "come home soon, come"] * 5),
        model_writer=model,
        model_type="bpe",
        vocab_size=45,
        unk_surface=unknown,
        bos_id=0,
        pad_id=1,
        eos_id=2,
        unk_id=3,
        minloglevel=3,
    )
    return of_model(model.getvalue())


WORDS = word_list(("the", "old", "house", ",", "come"))
LEARNED = learned("<unk>")
LISTED = Vocabulary(ListedPieces(LEARNED.segmenter.model), LEARNED.symbols, (1,) * 41)
VOCABULARIES = {"words": WORDS, "<unk>": LEARNED, "⁇": learned(" \u2047 "), "listed": LISTED}


def candidate(ids, looks, width):
    attention = np.full((len(ids) + 1, width + 1), 0.01, np.float32)
    attention[:, width] = 0.02  # a little at the end symbol
    for t, s in enumerate(looks):
        attention[t, s] = 0.5
    return Candidate(np.asarray(ids, np.int32), 0.0, np.zeros(len(ids) + 1, np.float32), attention)


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_every_vocabulary_gets_its_source_words_back(kind):
    """An unknown name translated by copying: each target token looks at its own source token."""
    vocabulary = VOCABULARIES[kind]
    text = "the old Żyxqwž , come"
    [ids] = vocabulary.encode([text])
    assert UNK in ids
    found = candidate(ids, range(len(ids)), len(ids))
    both = Vocabularies(vocabulary, vocabulary)
    assert text_of(both, text, found, {}) == text
    assert text_of(both, text, found, {"Żyxqwž": "Zyx"}) == "the old Zyx , come"
    assert text_of(both, text, found) == vocabulary.decode(ids) != text


@pytest.mark.parametrize(
    ("source", "looks", "word"),
    [("the Żyx", [0.1, 0.2, 0.7], "Żyx"), ("Ab Cd Ef Gh", [0.1, 0.7, 0.2], "Cd")],
    ids=["the end symbol is never copied", "a source that was cut stays in bounds"],
)
def test_the_best_real_token_counts(source, looks, word):
    attention = np.array([looks, [0.0, 0.0, 1.0]], np.float32)
    found = Candidate(np.array([UNK], np.int32), 0.0, np.zeros(2, np.float32), attention)
    assert text_of(Vocabularies(WORDS, WORDS), source, found, {}) == word


def test_without_attention_unknown_words_stay():
    nothing = Candidate(np.zeros(0, np.int32), 0.0, np.zeros(0, np.float32))
    assert text_of(Vocabularies(WORDS, WORDS), "", nothing, {}) == ""
    unknown = Candidate(np.array([UNK], np.int32), 0.0, np.zeros(2, np.float32))
    assert text_of(Vocabularies(WORDS, WORDS), "x", unknown, {}) == "<unk>"


@pytest.mark.parametrize("kind", VOCABULARIES)
def test_surfaces_are_the_text(kind):
    vocabulary = VOCABULARIES[kind]
    for text in ("the old Żyxqwž , come", "Ü", "", "come ж ж"):
        surfaces = vocabulary.surfaces(text)
        assert "".join(surfaces).strip() == text
        assert len(surfaces) == len(vocabulary.encode([text])[0])
