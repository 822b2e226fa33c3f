"""What a translator is asked to do: texts read as files are, and what no translation can hold refused in a sentence."""

import dataclasses
import re

import jax
import numpy as np
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.core.errors import UserError
from convs2s_jax.data.symbols import Vocabulary, word_list
from convs2s_jax.data.text_files import read_lines
from convs2s_jax.data.vocabulary import Vocabularies
from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.search import memory
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
        ({"lines": None}, TypeError, "expected a list of strings, got None; pass a list, which may"),
        ({"lines": b"5"}, TypeError, "expected a list of strings, got the bytes b'5'; put it in a list"),
        ({"lines": ["5", b"5"]}, TypeError, "line 2 is b'5', of type bytes: expected a str, which may be empty"),
        ({"lines": ["5\n6\n"]}, ValueError, "line 1 contains a line break: pass each line as a separate string"),
        ({"prefix": ["5", None]}, TypeError, "prefix 2 is None, of type NoneType: expected a str, which may be empty"),
        ({"prefix": ["5\n5", ""]}, ValueError, "prefix 1 contains a line break: pass each line as a separate string"),
        (
            {"lines": ["5", "6 \udcff"]},
            ValueError,
            "line 2 contains half of a surrogate pair, which is not a character: correct its encoding",
        ),
        ({"prefix": ["5"]}, UserError, "prefix has 1 entries for 2 lines: pass one per line, which may be empty"),
        ({"prefix": ["5", "1 ☃"]}, UserError, "prefix, line 2: '☃' is not in the target vocabulary, so no"),
        (
            {"constraints": [None, []]},
            TypeError,
            "expected a list of strings, got None; pass a list, which may be empty",
        ),
        ({"constraints": [[], ["5", 5]]}, TypeError, "constraints 2: phrase 2 is 5, of type int: expected a str"),
        ({"constraints": [[], ["5"], []]}, UserError, "constraints has 3 entries for 2 lines: pass one per line"),
        ({"constraints": [["5", "☃"], []]}, UserError, "constraints, line 1: '☃' is not in the target vocabulary"),
        ({"nbest": 3}, ValueError, "nbest is 3: use 1 to 2, because a search returns at most beam_size hypotheses"),
        ({"nbest": 0}, ValueError, "nbest is 0: use 1 to 2, because a search returns at most beam_size hypotheses"),
        ({"search": {"beam_size": 2}}, TypeError, "search is a dict: expected SearchConfig"),
        ({"search": {}}, TypeError, "search is a dict: expected SearchConfig"),
        ({"nbest": "2"}, ValueError, "nbest is '2': use 1 to 2, because"),
        ({"batching": 64}, TypeError, "batching is a int: expected Batching"),
        ({"key": jax.random.key(0)}, ValueError, "key without sampling: this search draws no samples; leave"),
        ({"unk_dictionary": {}}, ValueError, "unk_dictionary without replace_unk: no unknown word is replaced; set"),
    ],
    ids=str,
)
def test_what_would_be_ignored_or_misread_is_refused(translator, given, kind, sentence):
    with pytest.raises(kind, match=f"^{re.escape(sentence)}"):
        translator.translate(**{"lines": ["5 kilowatts", "Norway"], "search": SEARCH} | given)


def test_targets_are_named(translator):
    with pytest.raises(TypeError, match=r"^target 1 is None, of type NoneType: expected a str, which may be empty$"):
        translator.score(["5"], [None])


def test_what_needs_attention_is_refused_without_it(translator):
    cells = {"embedding_dim": 8, "encoder": {"kind": "recurrent", "units": 8}}
    cells["decoder"] = {"kind": "recurrent", "units": 8, "out_dim": 8, "attention": "none"}
    cfg, sizes = build(ModelConfig, cells), translator.vocabularies
    params = encoder_decoder.init(
        jax.random.key(0), cfg, source_vocabulary=sizes.src.size, target_vocabulary=sizes.tgt.size
    )
    blind = dataclasses.replace(translator, models=cfg, params=params)
    assert not blind.attends
    with pytest.raises(ValueError, match=r"^replace_unk: this model has no attention to find the source words; leave"):
        blind.translate(["5"], replace_unk=True)
    covered = dataclasses.replace(SEARCH, coverage_penalty=0.5)
    for call in (lambda: blind.translate(["5"], search=covered), lambda: blind.score(["5"], ["5"], search=covered)):
        with pytest.raises(ValueError, match=r"^coverage_penalty is 0\.5, but a model has no attention to cover the"):
            call()


def test_all_hypotheses_are_given_where_no_number_is(translator):
    both = library.translate(translator, TextRequest(SEARCH, ["5"], nbest=2))
    assert translator.translate(["5"], search=SEARCH, nbest=None) == both
    assert len(both[0].hypotheses) == 2


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
    with pytest.raises(UserError, match="a translation of this line has at most 61 "):
        check(translator, SearchConfig(), ["1 " * 200], ["5 " * 40])


def test_the_bound_counts_the_end_symbol_of_the_source(translator):
    """A source of n tokens has n + 1 with it."""
    search = SearchConfig(max_length_a=1.0, max_length_b=0)
    n = len(translator.vocabularies.src.encode(["1 2"])[0])
    words = ["ein"] * (n + 2)
    vocabularies = Vocabularies(translator.vocabularies.src, word_list(("ein",)))
    known = dataclasses.replace(translator, vocabularies=vocabularies)
    check(known, search, ["1 2"], [" ".join(words[:-1])])
    with pytest.raises(UserError, match=rf"^p, line 1: {n + 2} tokens are required, .* at most {n + 1} "):
        check(known, search, ["1 2"], [" ".join(words)])


def test_translations_beyond_the_positions_are_refused(worded):
    arguments.check_targets(worded, "t", ["ein " * 61, "", "Baum"])
    with pytest.raises(
        UserError, match=r"^t, line 2: the translation has 62 tokens, but the model has positions for only 61; sho"
    ):
        arguments.check_targets(worded, "t", ["ein", "ein " * 62])


def test_large_files_are_encoded_in_pieces(worded, monkeypatch):
    """The token ids of a whole input were in memory at once, for their lengths alone."""
    encode, most = Vocabulary.encode, []

    def counted(self, texts):
        most.append(len(texts))
        return encode(self, texts)

    monkeypatch.setattr(Vocabulary, "encode", counted)
    monkeypatch.setattr(arguments, "_PIECE", 3)
    words = worded.vocabularies.tgt
    both = dataclasses.replace(worded, vocabularies=Vocabularies(words, words))
    texts = ["ein"] * 10
    arguments.check_targets(both, "t", texts)
    check(both, SHORT, texts, texts)
    assert max(most) == 3
    with pytest.raises(UserError, match=r"^t, line 8: the translation has 62 tokens"):
        arguments.check_targets(both, "t", [*texts[:7], "ein " * 62])
    with pytest.raises(UserError, match=r"^p, line 10: the source line is empty"):
        check(both, SHORT, [*texts[:9], ""], texts)


@pytest.mark.parametrize("options", [{"beam_size": 99_999_999}, {"beam_size": 2**31 - 1}], ids=str)
def test_a_beam_beyond_memory_is_refused_at_once(translator, options):
    """It used to be compiled first, until memory ran out."""
    search = SearchConfig(**options)
    message = (
        rf"^search\.beam_size is {search.beam_size}: with 64 sentences in a batch, a vocabulary of 150 "
        r"and up to \d+ symbols in "
    )
    with pytest.raises(UserError, match=message) as found:
        arguments.check_memory(translator, search, 64)
    most = int(re.search(r"memory is enough for a beam of (\d+);", str(found.value)).group(1))
    arguments.check_memory(translator, SearchConfig(beam_size=most), 64)
    with pytest.raises(UserError, match=r"use a smaller beam_size or max_length_b, or smaller batches$"):
        arguments.check_memory(translator, SearchConfig(beam_size=most + 1), 64)


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


def test_continuations_are_numbered_in_32_bits(translator, monkeypatch):
    """However much memory there is."""
    monkeypatch.setattr("os.sysconf", lambda _: 2**40)
    with pytest.raises(UserError, match=rf"memory is enough for a beam of {(2**31 - 1) // (64 * 150)};"):
        arguments.check_memory(translator, SearchConfig(beam_size=10**6), 64)
