"""What a model can be asked for: required words, translations to score, beams."""

import dataclasses
import re

import jax
import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.data.symbols import Vocabulary, word_list
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.models import encoder_decoder
from convs2s_jax.search import memory
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.translation import fit

SEARCH = SearchConfig(max_length_a=0.0, max_length_b=4)
LINES = ["1 2", "", "3"]


@pytest.fixture
def worded(translator):
    """The translator with a target vocabulary of words."""
    words = word_list(("ein", "Haus", "ist", "da"))
    return dataclasses.replace(translator, vocabularies=Vocabularies(translator.vocabularies.src, words))


def test_where_nothing_is_required_no_line_is_tokenised():
    fit.check_fit(None, SEARCH, LINES)


def test_what_fits_passes(worded):
    fit.check_fit(
        worded,
        SEARCH,
        LINES,
        prefix=("p", ["ein", "", "ein Haus ist da"]),
        constraints=("c", [["ein Haus", "da"], [], []]),
    )


@pytest.mark.parametrize(
    ("prefix", "constraints", "message"),
    [
        (
            ["", "", "ein Haus ist da da"],
            None,
            "^p, line 3: 5 tokens are required, but a translation of this line has at",
        ),
        (
            None,
            [["ein", "Haus ist"], [], ["ein Haus", "ist da", "da"]],
            "^c, line 3: 5 tokens are required, .* most 4 ",
        ),
        (
            ["ein"] * 1 + ["", ""],
            [["Haus ist da da"], [], []],
            "^c, line 1: 5 tokens are required, including those of its ",
        ),
        (
            ["", "ein", ""],
            None,
            "^p, line 2: the source line is empty, so its translation is empty too; leave this line empty$",
        ),
        (None, [[], ["da"], []], "^c, line 2: the source line is empty"),
        (
            ["ein Baum", "", ""],
            None,
            "^p, line 1: 'Baum' is not in the target vocabulary, so no translation can contain it",
        ),
        (None, [[], [], ["Haus", "ein Baum da"]], "^c, line 3: 'Baum' is not in the target vocabulary"),
    ],
)
def test_what_no_translation_can_hold_is_refused(worded, prefix, constraints, message):
    with pytest.raises(UserError, match=message):
        fit.check_fit(
            worded,
            SEARCH,
            LINES,
            prefix=None if prefix is None else ("p", prefix),
            constraints=None if constraints is None else ("c", constraints),
        )


def test_an_unknown_piece_names_its_word(translator):
    with pytest.raises(UserError, match=r"^p, line 1: 'Кот' is not in the target vocabulary"):
        fit.check_fit(translator, SearchConfig(), ["1"], prefix=("p", ["1 Кот"]))


def test_the_bound_is_that_of_a_source_that_was_cut(translator):
    """62 positions: a source of 200 tokens is read up to 61 and its end symbol; the target has 61 tokens at most."""
    search = SearchConfig(max_length_a=0.5, max_length_b=0)
    fits = "5 " * 15  # 30 or 31 of 31 tokens
    fit.check_fit(translator, search, ["1 " * 200], prefix=("p", [fits]))
    with pytest.raises(UserError, match="a translation of this line has at most 31 "):
        fit.check_fit(translator, search, ["1 " * 200], prefix=("p", ["5 " * 20]))
    with pytest.raises(UserError, match="a translation of this line has at most 61 "):
        fit.check_fit(translator, SearchConfig(), ["1 " * 200], prefix=("p", ["5 " * 40]))


def test_the_bound_counts_the_end_symbol_of_the_source(translator):
    """A source of n tokens has n + 1 with it."""
    search = SearchConfig(max_length_a=1.0, max_length_b=0)
    n = len(translator.vocabularies.src.encode(["1 2"])[0])
    words = ["ein"] * (n + 2)
    vocabularies = Vocabularies(translator.vocabularies.src, word_list(("ein",)))
    known = dataclasses.replace(translator, vocabularies=vocabularies)
    fit.check_fit(known, search, ["1 2"], prefix=("p", [" ".join(words[:-1])]))
    with pytest.raises(UserError, match=rf"^p, line 1: {n + 2} tokens are required, .* at most {n + 1} "):
        fit.check_fit(known, search, ["1 2"], prefix=("p", [" ".join(words)]))


def test_translations_beyond_the_positions_are_refused(worded):
    fit.check_targets(worded, "t", ["ein " * 61, "", "Baum"])
    with pytest.raises(
        UserError, match=r"^t, line 2: the translation has 62 tokens, but the model has positions for only 61; sho"
    ):
        fit.check_targets(worded, "t", ["ein", "ein " * 62])


def test_large_files_are_encoded_in_pieces(worded, monkeypatch):
    """The token ids of a whole input were in memory at once, for their lengths alone."""
    encode, most = Vocabulary.encode, []

    def counted(self, texts):
        most.append(len(texts))
        return encode(self, texts)

    monkeypatch.setattr(Vocabulary, "encode", counted)
    monkeypatch.setattr(fit, "_PIECE", 3)
    words = worded.vocabularies.tgt
    both = dataclasses.replace(worded, vocabularies=Vocabularies(words, words))
    texts = ["ein"] * 10
    fit.check_targets(both, "t", texts)
    fit.check_fit(both, SEARCH, texts, prefix=("p", texts))
    assert max(most) == 3
    with pytest.raises(UserError, match=r"^t, line 8: the translation has 62 tokens"):
        fit.check_targets(both, "t", [*texts[:7], "ein " * 62])
    with pytest.raises(UserError, match=r"^p, line 10: the source line is empty"):
        fit.check_fit(both, SEARCH, [*texts[:9], ""], prefix=("p", texts))


@pytest.mark.parametrize("options", [{"beam_size": 99_999_999}, {"beam_size": 2**31 - 1}], ids=str)
def test_a_beam_beyond_memory_is_refused_at_once(translator, options):
    """It used to be compiled first, until memory ran out."""
    search = SearchConfig(**options)
    message = (
        rf"^search\.beam_size is {search.beam_size}: with 64 sentences in a batch, a vocabulary of 150 "
        r"and up to \d+ symbols in "
    )
    with pytest.raises(UserError, match=message) as found:
        fit.check_memory(translator, search, 64)
    most = int(re.search(r"memory is enough for a beam of (\d+);", str(found.value)).group(1))
    fit.check_memory(translator, SearchConfig(beam_size=most), 64)
    with pytest.raises(UserError, match=r"use a smaller beam_size or max_length_b, or smaller batches$"):
        fit.check_memory(translator, SearchConfig(beam_size=most + 1), 64)


def test_bytes_of_a_hypothesis_are_those_of_its_arrays(translator):
    """Counted from arrays that are really made."""
    params, models = (translator.params,), (translator.models,)
    small, large = (memory.bytes_per_hypothesis(params, models, vocab_size=150, limit=limit) for limit in (1, 101))
    assert large - small == 100 * 20

    @jax.jit
    def empty(src):
        return encoder_decoder.init_cache(*params, *models, encoder_decoder.encode(*params, *models, src), 1)

    cache = jax.tree.leaves(empty(np.ones((1, 16), np.int32)))
    assert small == 2 * sum(x.nbytes for x in cache) + 8 * 150 + 20


def test_continuations_are_numbered_in_32_bits():
    assert memory.largest_beam(1, rows=2, vocab_size=10, memory=2**60) == (2**31 - 1) // 20
    assert memory.largest_beam(100, rows=2, vocab_size=10, memory=8_000) == 10
