"""What a translator is asked to do: texts read as files are, and what no translation can hold refused in a sentence."""

import dataclasses
import re

import jax
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.core.errors import UserError
from convs2s_jax.data.symbols import word_list
from convs2s_jax.data.text_files import read_lines
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.translation import arguments
from convs2s_jax.translation import lines as library
from convs2s_jax.translation.lines import TextRequest

SEARCH = SearchConfig(beam_size=2, max_length_a=0.0, max_length_b=8)


@pytest.mark.parametrize("content", ["5\r\n\n6 \r7\u2028\n8\r\r\n9\r", "5\n6"], ids=repr)
def test_lines_of_an_open_file_are_those_that_are_read(content, tmp_path):
    path = tmp_path / "text"
    path.write_bytes(content.encode())
    with open(path, encoding="utf-8", newline="\n") as file:
        assert arguments.texts_of("line", file) == read_lines(path)


def test_texts_come_from_any_iterable_and_without_their_line_breaks(translator):
    prefix, phrases, targets = ["5", ""], [["5"], []], ["5 Kilowatt", "Norwegen"]
    lines = ["5 kilowatts", "Norway"]
    plain = library.translate(translator, TextRequest(SEARCH, lines, prefix=prefix, constraints=phrases))
    given = {"prefix": (f"{p}\n" for p in prefix), "constraints": (iter(p) for p in phrases), "search": SEARCH}
    assert translator.translate((f"{line}\r\n" for line in lines), **given) == plain
    scored = translator.score((f"{line}\n" for line in lines), (f"{target}\r" for target in targets))
    assert scored == library.translate(translator, TextRequest(translator.cfg.search, lines, targets=targets))


@pytest.mark.parametrize(
    ("given", "kind", "sentence"),
    [
        ({"lines": None}, TypeError, "expected a list of strings, got None: pass a list, which may be empty"),
        ({"lines": "April 4"}, TypeError, "expected a list of strings, got 'April 4': pass a list"),
        ({"constraints": ["ab", []]}, TypeError, "expected a list of strings, got 'ab': pass a list"),
        ({"lines": ["5", b"5"]}, TypeError, "line 2 is b'5': expected a str, which may be empty"),
        ({"lines": ["5\n6\n"]}, ValueError, "line 1 contains a line break: pass each line as a separate string"),
        ({"prefix": ["5", None]}, TypeError, "prefix 2 is None: expected a str, which may be empty"),
        ({"lines": ["5", "6 \udcff"]}, ValueError, "line 2 contains half of a surrogate pair, which is not a"),
        ({"prefix": ["5"]}, UserError, "prefix has 1 entries for 2 lines: pass one per line, which may be empty"),
        ({"prefix": ["5", "1 ☃"]}, UserError, "prefix, line 2: '☃' is not in the target vocabulary, so no"),
        ({"constraints": [[], ["5", 5]]}, TypeError, "constraints 2: phrase 2 is 5: expected a str"),
        ({"constraints": [[], ["5"], []]}, UserError, "constraints has 3 entries for 2 lines: pass one per line"),
        ({"nbest": 3}, ValueError, "nbest is 3: use 1 to 2, because a search returns at most beam_size hypotheses"),
        ({"search": {"beam_size": 2}, "nbest": None}, TypeError, "search is a dict: expected SearchConfig"),
        ({"batching": 64}, TypeError, "batching is a int: expected Batching"),
        ({"key": jax.random.key(0)}, ValueError, "key without sampling: this search draws no samples; leave"),
        ({"unk_dictionary": {}}, ValueError, "unk_dictionary without replace_unk: no unknown word is replaced; set"),
    ],
    ids=str,
)
def test_what_would_be_ignored_or_misread_is_refused(translator, given, kind, sentence):
    with pytest.raises(kind, match=f"^{re.escape(sentence)}"):
        translator.translate(**{"lines": ["5 kilowatts", "Norway"], "search": SEARCH} | given)


def test_replacement_of_words_needs_attention(translator):
    cells = {"embedding_dim": 8, "encoder": {"kind": "recurrent", "units": 8}}
    cells["decoder"] = {"kind": "recurrent", "units": 8, "out_dim": 8, "attention": "none"}
    blind = dataclasses.replace(translator, models=build(ModelConfig, cells))
    with pytest.raises(ValueError, match=r"^replace_unk: this model has no attention to find the source words; leave"):
        blind.translate(["5"], replace_unk=True)


SHORT = SearchConfig(max_length_a=0.0, max_length_b=4)
LINES = ["1 2", "", "3"]


@pytest.fixture
def worded(translator):
    """The translator with a target vocabulary of words."""
    words = word_list(("ein", "Haus", "ist", "da"))
    return dataclasses.replace(translator, vocabularies=Vocabularies(translator.vocabularies.src, words))


def check(translator, search, lines, prefix=None, constraints=None):
    request = TextRequest(search, lines, prefix=prefix, constraints=constraints)
    arguments.check_required(translator, request, names=("p", "c"))


def test_what_fits_passes(worded):
    check(worded, SHORT, LINES, ["ein", "", "ein Haus ist da"], [["ein Haus", "da"], [], []])


@pytest.mark.parametrize(
    ("prefix", "constraints", "message"),
    [
        (
            ["", "", "ein Haus ist da da"],
            None,
            "^p, line 3: 5 tokens are required in all, but a translation of",
        ),
        (
            None,
            [["ein", "Haus ist"], [], ["ein Haus", "ist da", "da"]],
            "^c, line 3: 5 tokens are required in all, .* most 4 ",
        ),
        (["ein", "", ""], [["Haus ist da da"], [], []], "^c, line 1: 5 tokens are required in all"),
        (["", "ein", ""], None, "^p, line 2: the source line is empty, so its translation is empty; leave this line"),
        (None, [[], ["da"], []], "^c, line 2: the source line is empty"),
        (None, [[], [], ["Haus", "ein Baum da"]], "^c, line 3: 'Baum' is not in the target vocabulary, so no"),
    ],
)
def test_what_no_translation_can_hold_is_refused(worded, prefix, constraints, message):
    with pytest.raises(UserError, match=message):
        check(worded, SHORT, LINES, prefix, constraints)


def test_an_unknown_piece_names_its_word(translator):
    with pytest.raises(UserError, match=r"^p, line 1: 'Кот' is not in the target vocabulary"):
        check(translator, SearchConfig(), ["1"], ["1 Кот"])


def test_the_bound_is_that_of_a_source_that_was_cut(translator):
    """62 positions: a source of 200 tokens is read up to 61 and its end symbol; the target has 61 tokens at most."""
    search = SearchConfig(max_length_a=0.5, max_length_b=0)
    fits = "5 " * 15  # 30 or 31 of 31 tokens
    check(translator, search, ["1 " * 200], [fits])
    with pytest.raises(UserError, match="a translation of this line has at most 31 "):
        check(translator, search, ["1 " * 200], ["5 " * 20])


def test_the_bound_counts_the_end_symbol_of_the_source(translator):
    """A source of n tokens has n + 1 with it."""
    search = SearchConfig(max_length_a=1.0, max_length_b=0)
    n = len(translator.vocabularies.src.encode(["1 2"])[0])
    words = ["ein"] * (n + 2)
    vocabularies = Vocabularies(translator.vocabularies.src, word_list(("ein",)))
    known = dataclasses.replace(translator, vocabularies=vocabularies)
    check(known, search, ["1 2"], [" ".join(words[:-1])])
    with pytest.raises(UserError, match=rf"^p, line 1: {n + 2} tokens are required .* at most {n + 1} "):
        check(known, search, ["1 2"], [" ".join(words)])


def test_translations_beyond_the_positions_are_refused(worded):
    arguments.check_targets(worded, "t", ["ein " * 61, "", "Baum"])
    with pytest.raises(
        UserError, match=r"^t, line 2: the translation has 62 tokens, but the model has positions for only 61; sho"
    ):
        arguments.check_targets(worded, "t", ["ein", "ein " * 62])
