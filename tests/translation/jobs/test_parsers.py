"""Parsers in decoding: any bytes are a dictionary or one sentence, and what was written is read back."""

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from convs2s_jax.core.errors import UserError
from convs2s_jax.translation.classifier import Choice, Labelled
from convs2s_jax.translation.jobs import inputs
from convs2s_jax.translation.jobs.formats import FORMATS
from convs2s_jax.translation.jobs.label_formats import LABEL_FORMATS
from convs2s_jax.translation.results import Hypothesis, Result

PROFILE = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)

lines = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=12)
tokens = st.text(st.characters(exclude_categories=["Cs", "Z", "Cc"]), min_size=1, max_size=4)
numbers = st.floats(width=32)
hypotheses = st.builds(
    lambda text, names, score: Hypothesis(text, tuple(names), score, tuple(score for _ in names), ((0, 0),)),
    lines,
    st.lists(tokens, min_size=1, max_size=3),
    numbers,
)


@PROFILE
@given(st.lists(st.tuples(lines, st.lists(hypotheses, min_size=1, max_size=3)), max_size=4), lines)
def test_what_is_written_is_read_back(found, reference):
    results = [
        Result(i, source, tuple(source.split()), tuple(best), reference=reference)
        for i, (source, best) in enumerate(found)
    ]
    for name, style in FORMATS.items():
        data = "".join(map(style.render, results)).encode()
        texts = style.texts(data)
        assert len(texts) == len(results)
        if name != "scores":
            assert texts == [result.best.text for result in results]


@PROFILE
@given(st.lists(st.tuples(lines, lines, st.floats(0, 1)), max_size=4))
def test_labels_that_are_written_are_read_back(found):
    results = [Labelled(i, source, (Choice(label, p),)) for i, (source, label, p) in enumerate(found)]
    for style in LABEL_FORMATS.values():
        data = "".join(map(style.render, results)).encode()
        assert style.texts(data) == [label for _, label, _ in found]


@PROFILE
@given(st.lists(lines, max_size=5))
def test_constraints_are_the_phrases_between_tabs(found):
    for line, phrases in zip(found, inputs.phrases_of(found), strict=True):
        assert all(phrase.strip() and "\t" not in phrase for phrase in phrases)
        assert [part for part in line.split("\t") if part.strip()] == phrases


@PROFILE
@given(data=st.binary(max_size=60) | st.lists(lines, max_size=4).map(lambda x: "\n".join(x).encode()))
@example(data=b"a\tb\na\tc\n")
@example(data=b"\xef\xbb\xbfa\tb\r\n\x85\tc\n")
def test_any_bytes_are_a_dictionary_or_one_sentence(tmp_path, data):
    path = tmp_path / "words"
    path.write_bytes(data)
    try:
        found = inputs.read_dictionary(str(path))
    except UserError as error:
        assert str(error).startswith(str(path))  # noqa: PT017
    else:
        assert all(a == a.strip() and b == b.strip() and a and b for a, b in found.items())
        assert len(found) <= data.count(b"\n") + 1
