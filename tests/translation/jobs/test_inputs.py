"""Files of wishes: what no translation can hold is refused with file and line, before anything is searched."""

import dataclasses
import gzip
import re

import jax
import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.data.words import WordList
from convs2s_jax.models import encoder_decoder
from convs2s_jax.search import memory
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.translation.jobs import inputs as requests

SEARCH = SearchConfig(max_length_a=0.0, max_length_b=4)
LINES = ["1 2", "", "3"]


@pytest.fixture
def worded(translator):
    """The translator with a target vocabulary of words."""
    words = WordList(("ein", "Haus", "ist", "da"), (1,) * 4)
    return dataclasses.replace(translator, vocabularies=Vocabularies(translator.vocabularies.src, words))


def file(folder, text):
    path = folder / "wishes"
    path.write_text(text)
    return str(path)


def test_a_line_for_each_line(tmp_path):
    path = file(tmp_path, "a\n\nb\n")
    assert requests.read_parallel(path, LINES, name="in", what="prefix") == ["a", "", "b"]
    zipped = tmp_path / "wishes.gz"
    zipped.write_bytes(gzip.compress(b"a\n\nb\n"))
    assert requests.read_parallel(str(zipped), LINES, name="in", what="prefix") == ["a", "", "b"]


def test_other_numbers_of_lines_are_refused(tmp_path):
    path = file(tmp_path, "a\n")
    with pytest.raises(UserError, match=f"^in has 3 lines, {path} 1: each line needs its prefix$"):
        requests.read_parallel(path, LINES, name="in", what="prefix")


def test_an_unreadable_line_is_named(tmp_path):
    path = tmp_path / "wishes"
    path.write_bytes(b"a\nb\xff\nc\n")
    with pytest.raises(UserError, match=f"^{path}, line 2: byte 0xff is not UTF-8"):
        requests.read_parallel(str(path), LINES, name="in", what="prefix")


def test_phrases_stand_between_tabs():
    assert requests.phrases_of(["ein Haus\tda", "", "\tHaus\t \t"]) == [["ein Haus", "da"], [], ["Haus"]]


def test_what_fits_passes(worded):
    requests.check_fit(
        worded,
        SEARCH,
        LINES,
        prefix=("p", ["ein", "", "ein Haus ist da"]),
        constraints=("c", [["ein Haus", "da"], [], []]),
    )


@pytest.mark.parametrize(
    ("prefix", "constraints", "message"),
    [
        (["", "", "ein Haus ist da da"], None, "^p, line 3: 5 tokens are required; a translation of this line has at"),
        (
            None,
            [["ein", "Haus ist"], [], ["ein Haus", "ist da", "da"]],
            "^c, line 3: 5 tokens are required; .* most 4 ",
        ),
        (
            ["ein"] * 1 + ["", ""],
            [["Haus ist da da"], [], []],
            "^c, line 1: 5 tokens are required, with those of its ",
        ),
        (
            ["", "ein", ""],
            None,
            "^p, line 2: the source line is empty, and so is its translation; leave this line empty$",
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
        requests.check_fit(
            worded,
            SEARCH,
            LINES,
            prefix=None if prefix is None else ("p", prefix),
            constraints=None if constraints is None else ("c", constraints),
        )


def test_an_unknown_piece_names_its_word(translator):
    with pytest.raises(UserError, match=r"^p, line 1: 'Кот' is not in the target vocabulary"):
        requests.check_fit(translator, SearchConfig(), ["1"], prefix=("p", ["1 Кот"]))


def test_the_bound_is_that_of_a_source_that_was_cut(translator):
    """62 positions: a source of 200 tokens is read up to 61 and its end symbol; the target has 61 tokens at most."""
    search = SearchConfig(max_length_a=0.5, max_length_b=0)
    fits = "5 " * 15  # 30 or 31 of 31 tokens
    requests.check_fit(translator, search, ["1 " * 200], prefix=("p", [fits]))
    with pytest.raises(UserError, match="a translation of this line has at most 31 "):
        requests.check_fit(translator, search, ["1 " * 200], prefix=("p", ["5 " * 20]))
    with pytest.raises(UserError, match="a translation of this line has at most 61 "):
        requests.check_fit(translator, SearchConfig(), ["1 " * 200], prefix=("p", ["5 " * 40]))


def test_translations_beyond_the_positions_are_refused(worded):
    requests.check_targets(worded, "t", ["ein " * 61, "", "Baum"])
    with pytest.raises(
        UserError, match=r"^t, line 2: the translation has 62 tokens, the model has positions for 61; sho"
    ):
        requests.check_targets(worded, "t", ["ein", "ein " * 62])


def test_large_files_are_encoded_in_pieces(worded, monkeypatch):
    """The token ids of a whole input were in memory at once, for their lengths alone."""
    encode, most = WordList.encode, []

    def counted(self, texts):
        most.append(len(texts))
        return encode(self, texts)

    monkeypatch.setattr(WordList, "encode", counted)
    monkeypatch.setattr(requests, "_PIECE", 3)
    words = worded.vocabularies.tgt
    both = dataclasses.replace(worded, vocabularies=Vocabularies(words, words))
    texts = ["ein"] * 10
    requests.check_targets(both, "t", texts)
    requests.check_fit(both, SEARCH, texts, prefix=("p", texts))
    assert max(most) == 3
    with pytest.raises(UserError, match=r"^t, line 8: the translation has 62 tokens"):
        requests.check_targets(both, "t", [*texts[:7], "ein " * 62])
    with pytest.raises(UserError, match=r"^p, line 10: the source line is empty"):
        requests.check_fit(both, SEARCH, [*texts[:9], ""], prefix=("p", texts))


def test_a_dictionary_has_a_pair_on_each_line(tmp_path):
    path = file(tmp_path, "Haus\thouse\n\nder Hund\t the dog \nHaus\thouse\n")
    assert requests.read_dictionary(path) == {"Haus": "house", "der Hund": "the dog"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Haus house\n", "line 1: 'Haus house' is not a source word, TAB, a target word$"),
        ("a\tb\nHaus\t\n", r"line 2: 'Haus\\t' is not"),
        ("a\tb\tc\n", "line 1: .* is not a source word"),
        ("a\tb\na\tc\n", "line 2: 'a' has another target word above; drop one of the two$"),
    ],
)
def test_other_lines_are_refused(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        requests.read_dictionary(file(tmp_path, text))


@pytest.mark.parametrize("options", [{"beam_size": 99_999_999}, {"beam_size": 2**31 - 1}], ids=str)
def test_a_beam_beyond_memory_is_refused_at_once(translator, options):
    """It used to be compiled first, until memory ran out."""
    search = SearchConfig(**options)
    message = (
        rf"^search\.beam_size is {search.beam_size}: with 64 sentences in a batch and up to \d+ symbols of 150 in "
    )
    with pytest.raises(UserError, match=message) as found:
        requests.check_memory(translator, search, 64)
    most = int(re.search(r"memory holds a beam of (\d+);", str(found.value)).group(1))
    requests.check_memory(translator, SearchConfig(beam_size=most), 64)
    with pytest.raises(
        UserError, match=r"use a smaller beam_size or max_length_b, or in decoding a smaller --batch_size$"
    ):
        requests.check_memory(translator, SearchConfig(beam_size=most + 1), 64)


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
