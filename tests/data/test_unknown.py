"""Unknown tokens: their share, the commonest of them, and those of a line."""

import re

import numpy as np
import pytest

from convs2s_jax.data import tokens_on_disk, unknown
from convs2s_jax.data.config import VocabularyConfig
from convs2s_jax.data.corpora import ParallelText
from convs2s_jax.data.symbols import Words
from tests.data.vocabularies import build

KNOWN = ["the cat sat on the mat", "a dog ran to the house of a cat", "yes, no, maybe!"] * 5
WORDS = Words.suffix
TEXTS = ["the 猫 sat", "猫 or 犬", "the cat", "zebra zebra ran"]


@pytest.fixture(params=["bpe", "words"])
def vocabulary(request):
    cfg = VocabularyConfig(kind=request.param, src_size=60, tgt_size=60)
    return build(cfg, ParallelText(KNOWN, KNOWN, "train")).src


def stored(texts, vocabulary, folder):
    return tokens_on_disk.tokenize([tokens_on_disk.Side("x", texts, vocabulary)], tokens_on_disk.Cache(folder))[0]


def test_the_share_is_that_of_all_tokens(vocabulary, tmp_path, monkeypatch):
    ids = [i for line in vocabulary.encode(TEXTS) for i in line]
    tokens = stored(TEXTS, vocabulary, tmp_path)
    monkeypatch.setattr(unknown, "_CHUNK", 3)
    assert unknown.share(tokens) == ids.count(3) / len(ids) > 0
    assert unknown.share(stored(["", ""], vocabulary, tmp_path)) == 0


def test_the_commonest_are_characters_of_sub_words_or_else_words(vocabulary, tmp_path, monkeypatch):
    def said(texts):
        return unknown.describe(stored(texts, vocabulary, tmp_path), texts, vocabulary, "source tokens")

    few, odd = [*KNOWN * 3, "猫"], ["\x1b"]
    assert re.match(
        rf"[\d.]+ % of source tokens \(most often 猫 z{'ebra' * (vocabulary.suffix == WORDS)}( .*)?\)$", said(TEXTS)
    )
    assert said(few).endswith(" source tokens")
    assert said(odd).endswith(r" \x1b)")
    monkeypatch.setattr(unknown, "_SAMPLE", 2)  # lines 0 and 2
    assert said(TEXTS).endswith("(most often 猫)")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("私は", ("私 は", "私は")),  # one token of two characters; one word
        ("the 犬\u200b cat\xa0猫", ("犬 猫", "犬 猫")),
        ("the cat\xa0sat", ("", "")),
        ("", ("", "")),
    ],
)
def test_what_is_unknown_in_a_line_is_characters_or_words(vocabulary, text, expected):
    ids = np.asarray(vocabulary.encode([text])[0], int)
    assert unknown.unknown_in(text, ids, vocabulary) == tuple(expected[vocabulary.suffix == WORDS].split())
