"""Each format against lines written by hand, and its best texts read back."""

import json
import math

import pytest

from convs2s_jax.translation.jobs.formats import FORMATS
from convs2s_jax.translation.results import Hypothesis, Result

LN2 = math.log(2)
BEST = Hypothesis("ein Haus\u2028", ("▁ein", "▁Haus", "</s>"), -0.5 * LN2, (-LN2, -0.5 * LN2, 0.0), ((0, 0), (2, 1)))
NEXT = Hypothesis("Haus", ("▁Haus", "</s>"), -2 * LN2, (-3 * LN2, -LN2), ((2, 0),))
RESULT = Result(3, "a ünit", ("▁a", "▁", "<unk>"), (BEST, NEXT))
EMPTY = Result(0, "", (), (Hypothesis("", (), 0.0, ()),))
HOPELESS = Result(1, "x", ("x",), (Hypothesis("", (), -math.inf, ()),))


def single(value):
    return pytest.approx(value, rel=1e-7)


def test_text_is_the_best_translation():
    assert FORMATS["text"].render(RESULT) == "ein Haus\u2028\n"
    assert FORMATS["text"].render(EMPTY) == "\n"


def test_a_line_end_inside_a_translation_makes_no_second_line():
    broken = Result(0, "x", (), (Hypothesis("a\nb", ("a\nb",), 0.0, (0.0,)),))
    assert FORMATS["text"].render(broken) == "a b\n"
    assert FORMATS["json"].render(broken).count("\n") == 1


def test_scores_are_the_sentences_then_the_tokens():
    sentence, tab, tokens = FORMATS["scores"].render(RESULT).rstrip("\n").partition("\t")
    assert tab
    assert float(sentence) == single(-0.5 * LN2)
    assert [float(x) for x in tokens.split(" ")] == [single(-LN2), single(-0.5 * LN2), 0.0]
    assert FORMATS["scores"].render(HOPELESS) == "-inf\t\n"


def test_json_has_the_promised_keys_and_full_precision():
    line = FORMATS["json"].render(RESULT)
    assert line.endswith("}\n")
    assert "ünit" in line
    record = json.loads(line)
    assert list(record) == ["line", "source", "source_tokens", "hypotheses"]
    assert record["line"] == 3
    assert record["source"] == "a ünit"
    assert record["source_tokens"] == ["▁a", "▁", "<unk>"]
    first, second = record["hypotheses"]
    assert list(first) == ["text", "tokens", "score", "token_scores", "alignment"]
    assert (first["text"], first["tokens"]) == ("ein Haus\u2028", ["▁ein", "▁Haus", "</s>"])
    assert first["score"] == single(-0.5 * LN2)
    assert first["token_scores"] == [single(-LN2), single(-0.5 * LN2), 0.0]
    assert (first["alignment"], second["alignment"]) == ("0-0 2-1", "2-0")
    assert len(second["tokens"]) == len(second["token_scores"])


def test_json_of_no_number_is_null():
    [hypothesis] = json.loads(FORMATS["json"].render(HOPELESS), parse_constant=pytest.fail)["hypotheses"]
    assert hypothesis == {"text": "", "tokens": [], "score": None, "token_scores": [], "alignment": ""}


def test_fairseq_lines_are_those_of_fairseq_generate():
    """Scores in base 2, the end symbol's among them; tokens without it; the reference after the source."""
    with_reference = Result(3, "a ünit", RESULT.source_tokens, RESULT.hypotheses, reference="das Haus")
    assert FORMATS["fairseq"].render(with_reference).split("\n") == [
        "S-3\t▁a ▁ <unk>",
        "T-3\tdas Haus",
        *["H-3\t-0.5\t▁ein ▁Haus", "D-3\t-0.5\tein Haus\u2028", "P-3\t-1.0000 -0.5000 0.0000", "A-3\t0-0 2-1"],
        *["H-3\t-2.0\t▁Haus", "D-3\t-2.0\tHaus", "P-3\t-3.0000 -1.0000", "A-3\t2-0"],
        "",
    ]
    assert FORMATS["fairseq"].render(EMPTY).split("\n") == ["S-0\t", "H-0\t0.0\t", "D-0\t0.0\t", "P-0\t", "A-0\t", ""]


SOURCES = ["one", "", "two\u2028", "three"]


@pytest.mark.parametrize("nbest", [1, 2])
@pytest.mark.parametrize("name", FORMATS)
def test_the_best_texts_are_read_back(name, nbest):
    found = [Hypothesis(f"text {i}\r" * (i > 0), (f"t{i}", "</s>"), -i, (-i, 0.0), ((0, 0),)) for i in range(nbest)]
    results = [
        Result(i, source, tuple(source.split()), tuple(found) if source else EMPTY.hypotheses * nbest)
        for i, source in enumerate(SOURCES)
    ]
    texts = FORMATS[name].texts("".join(map(FORMATS[name].render, results)).encode())
    assert len(texts) == len(SOURCES)
    if name != "scores":
        assert texts == [result.best.text for result in results]
