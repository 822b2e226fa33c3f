"""The library's functions: what is asked for is there, and nothing else changes."""

import dataclasses

import numpy as np
import pytest

from convs2s_jax.data.bpe_codes import CodedWords
from convs2s_jax.data.config import VocabularyConfig
from convs2s_jax.data.pieces import train
from convs2s_jax.data.symbols import Vocabulary, word_list
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.translation import lines as library
from convs2s_jax.translation.lines import TextRequest

SEARCH = SearchConfig(beam_size=3, max_length_a=1.0, max_length_b=4)


@pytest.fixture(scope="module")
def found(translator):
    from tests.translation.conftest import LINES

    return library.translate(translator, TextRequest(SEARCH, LINES, nbest=3))


def test_results_keep_the_lines(found, lines):
    assert [(r.line, r.source) for r in found] == list(enumerate(lines))
    for result in found:
        for h in result.hypotheses:
            assert len(h.tokens) == len(h.token_scores)
            assert h.tokens[-1:] in ((), ("</s>",))
            assert len(h.alignment) == max(0, len(h.tokens) - 1)
            assert all(s < len(result.source_tokens) for s, _ in h.alignment)


def test_given_translations_score_what_the_search_reported(translator, lines):
    """Of hypotheses that are cut into the same tokens again."""
    vocabulary, search = translator.vocabularies.tgt, dataclasses.replace(SEARCH, max_length_a=0.0)
    found = library.translate(translator, TextRequest(search, lines, nbest=3))
    pairs = [
        (result.source, h)
        for result in found
        for h in result.hypotheses
        if result.source and [vocabulary.token(i) for i in vocabulary.encode([h.text])[0]] == list(h.tokens[:-1])
    ]
    assert pairs
    scored = library.translate(
        translator, TextRequest(search, [s for s, _ in pairs], targets=[h.text for _, h in pairs])
    )
    for (_, h), result in zip(pairs, scored, strict=True):
        assert (result.best.text, result.best.tokens) == (h.text, h.tokens)
        assert result.best.alignment == h.alignment
        np.testing.assert_allclose(result.best.score, h.score, rtol=1e-5)
        np.testing.assert_allclose(result.best.token_scores, h.token_scores, rtol=1e-4, atol=1e-5)


def test_the_text_of_a_scored_line_is_the_given_one(translator):
    [result] = library.translate(translator, TextRequest(SEARCH, ["Norway"], targets=["Ж  Norwegen"], first=7))
    assert (result.line, result.best.text) == (7, "Ж  Norwegen")
    assert "<unk>" in result.best.tokens


def test_unknown_words_are_replaced_by_aligned_source_words(translator, lines):
    """A reward for unknown symbols makes whole translations of them; tokens and scores stay the model's."""
    search = SearchConfig(beam_size=1, unk_penalty=-50.0, max_length_a=0.0, max_length_b=3)
    plain = library.translate(translator, TextRequest(search, lines))
    assert set(plain[2].best.tokens[:-1]) == {"<unk>"}
    replaced = library.translate(translator, TextRequest(search, lines, replace_unk=True, attention=False))
    named = library.translate(
        translator, TextRequest(search, lines, replace_unk=True, unk_dictionary={"Norway": "NORGE"})
    )
    for before, after in zip(plain, replaced, strict=True):
        assert before.best.tokens == after.best.tokens
        assert "<unk>" not in after.best.text
        assert all(part in before.source for part in after.best.text.split())
    assert named[5].best.text.split() == ["NORGE"] * len(replaced[5].best.text.split())
    assert replaced[5].best.text.split()


JAPANESE = [
    "水墨画は日本の水墨画。",
    "水墨画の水墨画を水墨画に。",
    "日本の水 AI の絵、日本の絵。",
    "水墨画は墨の絵。",
] * 3


@pytest.fixture(scope="module")
def japanese():
    """Sub-words for 水墨画 within a line, and others for it at the beginning of one."""
    vocabulary = train(VocabularyConfig(kind="bpe"), JAPANESE, size=40, field="tgt_size")
    assert vocabulary.surfaces("水墨画") == [" 水墨画"]
    return vocabulary


def test_phrases_of_scripts_without_spaces_are_spelt_as_within_a_line(japanese):
    """Their sub-words are those of the same characters in the middle of a line, where no space is before them."""
    for phrase in ("水墨画", "日本", "の", " 水墨画は"):
        [ids], [line] = library.encode_phrases(japanese, [phrase]), japanese.encode([f"AI{phrase.strip()}"])
        assert line[-len(ids) :] == ids.tolist()
        assert "".join(map(japanese.token, ids)) == phrase.strip()


def test_other_phrases_are_spelt_as_words(japanese):
    for phrase in ("AI", "AI の", "", "「水", "\u00a0", "\u3000", "\t"):
        assert library.encode_phrases(japanese, [phrase])[0].tolist() == japanese.encode([phrase])[0]
    words = word_list(("水墨", "画"))
    codes = Vocabulary(CodedWords(()), ("水@@", "水", "墨"))
    for vocabulary in (words, codes):
        assert library.encode_phrases(vocabulary, ["水墨 画"])[0].tolist() == vocabulary.encode(["水墨 画"])[0]
