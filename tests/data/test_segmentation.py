"""Random segmentations: their probabilities are those of the papers, and the same arguments give the same."""

import collections
import io
import itertools
import math
import random

import numpy as np
import pytest
import sentencepiece

from convs2s_jax.core.tokens import SPECIAL
from convs2s_jax.data import lines, processes, segmentation, tokens_on_disk
from convs2s_jax.data.bpe_codes import CodedWords, merged_at_random
from convs2s_jax.data.config import VocabularyConfig
from convs2s_jax.data.corpora import ParallelText
from convs2s_jax.data.pieces import ListedPieces
from convs2s_jax.data.segmentation import RandomPieces
from convs2s_jax.data.symbols import Vocabulary
from tests.data import vocabularies

MERGES = (("l", "o"), ("lo", "w"), ("e", "r</w>"), ("low", "er</w>"), ("a", "a"))
RANKS = {pair: rank for rank, pair in enumerate(MERGES)}


def rank(left, right):
    return RANKS.get((left, right))


@pytest.fixture(scope="module")
def unigram():
    parts = ("un", "re", "de", "over"), ("do", "real", "make", "load", "read"), ("", "ing", "er", "s")
    words = ["".join(word) for word in itertools.product(*parts)]
    lines = [" ".join(words[7 * i % 80 : 7 * i % 80 + 6]) for i in range(200)]
    text = ParallelText(lines, lines, "train")
    return vocabularies.build(VocabularyConfig(kind="unigram", src_size=60, tgt_size=60), text).src


@pytest.fixture(scope="module")
def bpe():
    return vocabularies.build(VocabularyConfig(kind="bpe", src_size=160, tgt_size=120)).src


@pytest.fixture(scope="module")
def listed(bpe):
    return Vocabulary(ListedPieces(bpe.segmenter.model), tuple(reversed(bpe.symbols)))


@pytest.fixture(scope="module")
def coded():
    words = ("low@@", "er", "lower", "l@@", "o@@", "w@@", "e@@", "r", "lo@@", "a@@", "a")
    return Vocabulary(CodedWords(MERGES), words)


def frequencies(outcomes):
    outcomes = [tuple(one) for one in outcomes]
    return {one: count / len(outcomes) for one, count in collections.Counter(outcomes).items()}


def agree(found, expected, draws):
    """All frequencies lie within five standard errors of their probabilities."""
    assert set(found) <= {one for one, p in expected.items() if p > 0}
    for one, p in expected.items():
        assert abs(found.get(one, 0) - p) <= 5 * math.sqrt(p * (1 - p) / draws) + 1e-12, one


def by_merges(symbols, rate):
    """The probability of each result, from all subsets of the places that are left out at each step."""
    places = [(RANKS[pair], i) for i, pair in enumerate(itertools.pairwise(symbols)) if pair in RANKS]
    found = collections.Counter()
    for kept in itertools.product((False, True), repeat=len(places)):
        p = math.prod(1 - rate if one else rate for one in kept)
        left = [place for place, one in zip(places, kept, strict=True) if one]
        if not left:
            found[symbols] += p
            continue
        parts, i, lowest = [], 0, min(left)[0]
        while i < len(symbols):
            step = 2 if (lowest, i) in left else 1
            parts.append("".join(symbols[i : i + step]))
            i += step
        for one, q in by_merges(tuple(parts), rate).items():
            found[one] += p * q
    return found


@pytest.mark.parametrize("symbols", [("l", "o", "w", "e", "r</w>"), ("a", "a", "a", "l", "o")])
@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_each_merge_is_left_out_with_the_given_probability(symbols, rate):
    rng, draws = random.Random(1), 20_000
    found = frequencies(merged_at_random(symbols, rank, rate=rate, rng=rng) for _ in range(draws))
    agree(found, by_merges(symbols, rate), draws)


ODD = [
    *vocabularies.SRC[:3],
    "",
    " ",
    "  a  b ",
    "\u2581\u2581",
    "der\u3000Hund",
    "\U0001f600\U0001f600x",
    "ab" * 400,
    "q",
]


@pytest.mark.parametrize(
    "options",
    [{}, {"byte_fallback": True}, {"user_defined_symbols": ["Hund", "<x>"]}, {"split_by_whitespace": False}],
    ids=["plain", "bytes", "symbols of the user's", "across words"],
)
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_what_is_drawn_from_a_model_is_a_segmentation_of_its_own_text(kind, options):
    """With no merge left out it is SentencePiece's own; and any is one that SentencePiece decodes to the same text."""
    texts = [f"der {i}. Hund läuft <x> {'weit ' * (i % 3)}weg" for i in range(40)]
    size = 340 if "byte_fallback" in options else 60
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts),
        model_writer=model,
        model_type=kind,
        vocab_size=size,
        hard_vocab_limit=False,
        minloglevel=2,
        **options,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces, rng = RandomPieces(processor), random.Random(1)
    for text in [*texts, *ODD]:
        if kind == "bpe":
            assert pieces.draw(text, rate=0, rng=rng) == processor.encode(text, out_type=str)
        for rate in (0.1, 0.9):
            drawn = pieces.draw(text, rate=rate, rng=rng)
            assert processor.decode(drawn) == processor.decode(processor.encode(text, out_type=str))
            assert all(drawn.count(symbol) == text.count(symbol) for symbol in options.get("user_defined_symbols", []))


@pytest.mark.parametrize("rate", [0.2, 1.0])
def test_a_unigram_model_draws_by_the_power_of_probabilities(unigram, rate):
    """All segmentations of "redoing", which SentencePiece reads with a space before it."""
    model = sentencepiece.SentencePieceProcessor(model_proto=unigram.segmenter.model)
    text, draws = "\u2581redoing", 20_000
    ids = {model.id_to_piece(i): i for i in range(len(SPECIAL), model.get_piece_size())}
    weights = {}
    for cuts in itertools.product((False, True), repeat=len(text) - 1):
        bounds = [0, *(i for i, cut in enumerate(cuts, 1) if cut), len(text)]
        parts = [text[a:b] for a, b in itertools.pairwise(bounds)]
        if all(part in ids for part in parts):
            numbers = tuple(ids[part] for part in parts)
            weights[numbers] = math.exp(rate * sum(map(model.get_score, numbers)))
    assert len(weights) > 2
    total = sum(weights.values())
    expected = {one: weight / total for one, weight in weights.items()}
    agree(frequencies(unigram.sample(["redoing"] * draws, rate=rate, seed=5)), expected, draws)


def test_draws_of_codes_are_segmentations_and_the_same_in_all_versions(coded):
    """Python's generator keeps its numbers."""
    assert coded.sample(["lower lower"], rate=0.4, seed=3) == [[7, 8, 9, 5, 12, 9, 10, 11]]
    drawn = coded.sample(["lower aa"] * 300, rate=0.5, seed=3)
    assert len(set(map(tuple, drawn))) > 5
    assert {coded.decode(ids) for ids in drawn} == {"lower aa"}
    assert coded.sample(["lower aa"], rate=0, seed=3) == coded.encode(["lower aa"])


@pytest.mark.parametrize("kind", ["unigram", "bpe", "listed", "coded"])
def test_a_seed_determines_the_draw(request, kind):
    vocabulary = request.getfixturevalue(kind)
    assert vocabulary.segmenter.divides_words
    texts = ["lower redoing", "lower lower", "unload", "overreading remakeing"] * 20
    first = vocabulary.sample(texts, rate=0.3, seed=7)
    assert vocabulary.sample(texts, rate=0.3, seed=7) == first != vocabulary.sample(texts, rate=0.3, seed=8)
    if kind == "listed":
        own = request.getfixturevalue("bpe")
        drawn = own.sample(texts, rate=0.3, seed=7)
        assert [[own.token(i) for i in ids] for ids in drawn] == [[vocabulary.token(i) for i in ids] for ids in first]
    if kind != "coded":  # its list does not have all letters
        assert [vocabulary.decode(ids) for ids in first] == [vocabulary.decode(ids) for ids in vocabulary.encode(texts)]


def draw(texts, vocabulary, folder, seed=(1, 2), workers=1):
    return segmentation.draw(texts, vocabulary, folder, rate=0.5, seed=seed, share=processes.local(workers))


def test_lines_of_all_chunks_are_drawn_with_seeds_of_their_own(monkeypatch, coded, tmp_path):
    monkeypatch.setattr(segmentation, "BLOCK", 40)
    texts = ["lower " * 6] * 100
    drawn = draw(texts, coded, tmp_path)
    sentences = [drawn[i].tolist() for i in range(100)]
    assert {coded.decode(ids) for ids in sentences} == {texts[0].strip()}
    assert sentences[:40] != sentences[40:80]
    again = draw(texts, coded, tmp_path)
    assert np.array_equal(again.tokens, drawn.tokens)
    assert not np.array_equal(draw(texts, coded, tmp_path, seed=(1, 3)).tokens[:50], drawn.tokens[:50])


@pytest.mark.parametrize("workers", [1, 2])
def test_long_text_is_drawn_in_ranges_with_the_same_result_and_leaves_no_files(monkeypatch, coded, tmp_path, workers):
    texts = [*(["lower er " * (1 + i % 5) for i in range(9000)]), ""]
    whole = draw(texts, coded, tmp_path / "unused")
    assert not (tmp_path / "unused").exists()
    monkeypatch.setattr(segmentation, "RANGE", 4096)
    (tmp_path / f"{lines._PREFIX}4194999-x").mkdir()  # of a killed process: above the largest process number
    found = draw(texts, coded, tmp_path, workers=workers)
    assert found.tokens.dtype == whole.tokens.dtype
    assert np.array_equal(found.tokens, whole.tokens)
    assert np.array_equal(found.offsets, whole.offsets)
    assert [*tmp_path.iterdir()] == []


def test_a_sentence_that_is_too_long_keeps_its_best_segmentation():
    best = tokens_on_disk.in_memory([[5], [], [6, 7], [8, 9, 10]], size=100)
    drawn = tokens_on_disk.in_memory([[1, 2, 3], [], [4, 5, 6, 7], [8, 1, 1]], size=100)
    found = segmentation.within(drawn, best, 4)  # with the end symbol
    assert [found[i].tolist() for i in range(4)] == [[1, 2, 3], [], [6, 7], [8, 1, 1]]
    assert found.lengths.tolist() == [3, 0, 2, 3]
    assert segmentation.within(drawn, best, 5) is drawn
    assert tokens_on_disk.in_memory([], size=1 << 17).tokens.dtype == np.uint32
