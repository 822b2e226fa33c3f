"""Each format against lines written by hand, any results read back, and the files beside the source."""

import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from convs2s_jax.core.errors import UserError
from convs2s_jax.translation.jobs import job
from convs2s_jax.translation.jobs.formats import FORMATS
from convs2s_jax.translation.results import Hypothesis, Result

LN2 = math.log(2)
BEST = Hypothesis("ein Haus\u2028", ("▁ein", "▁Haus", "</s>"), -0.5 * LN2, (-LN2, -0.5 * LN2, 0.0), ((0, 0), (2, 1)))
NEXT = Hypothesis("Haus", ("▁Haus", "</s>"), -2 * LN2, (-3 * LN2, -LN2), ((2, 0),))
RESULT = Result(3, "a ünit", ("▁a", "▁", "<unk>"), (BEST, NEXT), reference="das Haus")
EMPTY = Result(0, "", (), (Hypothesis("", (), 0.0, ()),))
HOPELESS = Result(1, "x", ("x",), (Hypothesis("", (), -math.inf, ()),))
PROFILE = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
lines = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=12)
tokens = st.text(st.characters(exclude_categories=["Cs", "Z", "Cc"]), min_size=1, max_size=4)
hypotheses = st.builds(
    lambda text, names, score: Hypothesis(text, tuple(names), score, tuple(score for _ in names), ((0, 0),)),
    lines,
    st.lists(tokens, min_size=1, max_size=3),
    st.floats(-(2.0**120), 2.0**120, width=32) | st.sampled_from([-math.inf, math.nan]),
)


def single(value):
    return pytest.approx(value, rel=1e-7)


def test_text_is_the_best_translation_on_one_line():
    assert FORMATS["text"].render(RESULT) == "ein Haus\u2028\n"
    assert FORMATS["text"].render(EMPTY) == "\n"
    broken = Result(0, "x", (), (Hypothesis("a\nb", ("a\nb",), 0.0, (0.0,)),))
    assert FORMATS["text"].render(broken) == "a b\n"
    assert FORMATS["json"].render(broken).count("\n") == 1


def test_scores_are_the_sentences_then_the_tokens():
    sentence, _, tokens = FORMATS["scores"].render(RESULT).rstrip("\n").partition("\t")
    assert float(sentence) == single(-0.5 * LN2)
    assert [float(x) for x in tokens.split(" ")] == [single(-LN2), single(-0.5 * LN2), 0.0]
    assert FORMATS["scores"].render(HOPELESS) == "-inf\t\n"


def test_json_has_the_promised_keys_and_full_precision():
    line = FORMATS["json"].render(RESULT)
    assert "ünit" in line
    record = json.loads(line)
    assert list(record) == ["line", "source", "source_tokens", "hypotheses"]
    assert [*record.values()][:3] == [3, "a ünit", ["▁a", "▁", "<unk>"]]
    first, second = record["hypotheses"]
    assert list(first) == ["text", "tokens", "score", "token_scores", "alignment"]
    assert (first["text"], first["tokens"]) == ("ein Haus\u2028", ["▁ein", "▁Haus", "</s>"])
    assert first["score"] == single(-0.5 * LN2)
    assert first["token_scores"] == [single(-LN2), single(-0.5 * LN2), 0.0]
    assert (first["alignment"], second["alignment"]) == ("0-0 2-1", "2-0")
    [hypothesis] = json.loads(FORMATS["json"].render(HOPELESS), parse_constant=pytest.fail)["hypotheses"]
    assert hypothesis == {"text": "", "tokens": [], "score": None, "token_scores": [], "alignment": ""}


def test_fairseq_lines_are_those_of_fairseq_generate():
    """Scores in base 2, the end symbol's among them; tokens without it; the reference after the source."""
    assert FORMATS["fairseq"].render(RESULT).split("\n") == [
        "S-3\t▁a ▁ <unk>",
        "T-3\tdas Haus",
        *["H-3\t-0.5\t▁ein ▁Haus", "D-3\t-0.5\tein Haus\u2028", "P-3\t-1.0000 -0.5000 0.0000", "A-3\t0-0 2-1"],
        *["H-3\t-2.0\t▁Haus", "D-3\t-2.0\tHaus", "P-3\t-3.0000 -1.0000", "A-3\t2-0"],
        "",
    ]
    assert FORMATS["fairseq"].render(EMPTY).split("\n") == ["S-0\t", "H-0\t0.0\t", "D-0\t0.0\t", "P-0\t", "A-0\t", ""]


@PROFILE
@given(st.lists(st.tuples(lines, st.lists(hypotheses, min_size=1, max_size=3)), max_size=4), lines)
def test_what_is_written_is_read_back(found, reference):
    results = [
        Result(i, source, tuple(source.split()), tuple(best), reference=reference)
        for i, (source, best) in enumerate(found)
    ]
    for name, style in FORMATS.items():
        texts = [*style.texts("".join(map(style.render, results)).split("\n")[:-1])]
        assert len(texts) == len(results)
        assert name == "scores" or texts == [result.best.text for result in results]


def test_phrases_stand_between_tabs():
    assert job.phrases_of(["ein Haus\tda", "", "\tHaus\t \t"]) == [["ein Haus", "da"], [], ["Haus"]]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Haus\thouse\n\nder Hund\t the dog \nHaus\thouse\n", {"Haus": "house", "der Hund": "the dog"}),
        ("Haus house\n", "line 1: 'Haus house' is not a source word, TAB, a target word$"),
        ("a\tb\nHaus\t\n", r"line 2: 'Haus\\t' is not"),
        ("a\tb\tc\n", "line 1: .* is not a source word"),
        ("a\tb\na\tc\n", "line 2: 'a' has another target word above; remove one of the two$"),
    ],
)
def test_a_dictionary_has_a_pair_on_each_line(tmp_path, text, found):
    (tmp_path / "words").write_text(text)
    if isinstance(found, dict):
        assert job.read_dictionary(f"{tmp_path}/words") == found
    else:
        with pytest.raises(UserError, match=found):
            job.read_dictionary(f"{tmp_path}/words")
