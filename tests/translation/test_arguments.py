"""What Python callers hand to a translator: read as files are, or refused with a sentence."""

import dataclasses
import re

import jax
import pytest

from convs2s_jax.core.config import build
from convs2s_jax.core.errors import UserError
from convs2s_jax.data.text_files import read_lines
from convs2s_jax.models import encoder_decoder
from convs2s_jax.models.config import ModelConfig
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.translation import arguments
from convs2s_jax.translation import lines as library

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
    plain = library.translate(translator, SEARCH, lines, prefix=prefix, constraints=phrases)
    given = {"prefix": (f"{p}\n" for p in prefix), "constraints": (iter(p) for p in phrases), "search": SEARCH}
    assert translator.translate((f"{line}\r\n" for line in lines), **given) == plain
    scored = translator.score((f"{line}\n" for line in lines), (f"{target}\r" for target in targets))
    assert scored == library.score(translator, translator.cfg.search, lines, targets)


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
    both = library.translate(translator, SEARCH, ["5"], nbest=2)
    assert translator.translate(["5"], search=SEARCH, nbest=None) == both
    assert len(both[0].hypotheses) == 2
