"""Sentences as they are typed: an answer before the next one is read, and nothing compiled for it."""

import errno
import io
import json
import os

import jax
import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.search import shortlist
from convs2s_jax.search.shortlist import Shortlist
from convs2s_jax.training.run.compilations import CompileCounter
from convs2s_jax.translation import lines as library
from convs2s_jax.translation import shortlists
from convs2s_jax.translation.jobs import interactive
from convs2s_jax.translation.jobs.options import Options
from convs2s_jax.translation.lines import TextRequest
from tests.helpers import drills_but


class Typist(io.RawIOBase):
    """Standard input whose reader is looked at each time it asks for a line."""

    def __init__(self, lines, look):
        super().__init__()
        self.lines, self.look = iter(lines), look
        self.buffer = self

    def isatty(self):
        return False

    def readline(self, *_):
        self.look()
        return next(self.lines, b"")


@pytest.fixture
def talk(trained, monkeypatch, capsys):
    """Answers, what was told, and compilations before each line was asked for and at the end."""

    def talk(lines, **options):
        answers, told, compiled = [], [], []
        with CompileCounter() as counter:

            def look():
                answers.append(capsys.readouterr().out)
                compiled.append(counter.count)

            monkeypatch.setattr("sys.stdin", Typist([line.encode() for line in lines], look))
            given = Options(workdir=(str(trained),), interactive=True, **options)
            interactive.interact(given, tell=told.append)
        return answers[1:], told, compiled

    return talk


def test_answers_come_at_once_and_are_those_of_a_file(talk, translator, lines):
    answers, told, _ = talk([f"{line}\n" for line in lines[:-1]] + [lines[-1]])
    expected = library.translate(translator, TextRequest(translator.cfg.search, lines))
    assert answers == [f"{result.best.text}\n" for result in expected]
    assert told == ["compiling ...", "ready"]


@pytest.mark.parametrize(
    "options",
    drills_but(
        [
            {},
            {"format": "json", "nbest": 2},
            {"format": "fairseq", "replace_unk": True},
            {"search": {"sampling": True}, "seed": 3},
        ],
        kept=[{"format": "json", "nbest": 2}],
    ),
    ids=str,
)
def test_no_sentence_needs_a_compilation(talk, options):
    """From one token to the 63 that the width allows."""
    _check_compiled_before(talk, options)


@pytest.mark.drill
def test_no_sentence_needs_a_compilation_with_a_shortlist(talk, translator, tmp_path, monkeypatch):
    """Of few words, or of so many that the softmax is over all."""
    monkeypatch.setattr(shortlist, "LEAST", 8)
    vocabularies = translator.vocabularies
    S, V = vocabularies.src.size, vocabularies.tgt.size
    words = np.sort(np.random.default_rng(0).integers(4, V, (S, 12)), axis=1).reshape(-1).astype(np.int32)
    made = Shortlist(np.asarray([5], np.int32), words, np.arange(S + 1, dtype=np.int32) * 12, V)
    part = shortlist.fixed_sizes(made, 1)[0]
    counts = [len(made.words_for(ids)) for ids in vocabularies.src.encode(["1", "a (b), c £5.00 at 12:30"])]
    assert counts[0] <= part < counts[1]  # else one of the two sizes is not seen
    shortlists.save(made, vocabularies, tmp_path / "shortlist")
    _check_compiled_before(talk, {"shortlist": str(tmp_path / "shortlist")})


def _check_compiled_before(talk, options):
    jax.clear_caches()  # of the tests before
    lines = ["5\n", "Norway\n", "\n", "a (b), c £5.00 at 12:30\n", "1 2 " * 15 + "\n", "a\n"]
    answers, _, compiled = talk(lines, **options)
    assert len(answers) == 6
    assert compiled[0] > 0
    assert set(compiled) == {compiled[0]}


def test_a_source_that_is_cut_is_named(talk):
    _, told, _ = talk(["a\n", "1 " * 80 + "\n"])
    assert told[2].startswith("standard input, line 2: too long for the model's positions; left out at its end: ")


def test_lines_are_numbered(talk):
    answers, _, _ = talk(["Norway\n", "\r\n", "5 km\r\n"], format="json")
    records = [json.loads(answer) for answer in answers]
    assert [(record["line"], record["source"]) for record in records] == [(0, "Norway"), (1, ""), (2, "5 km")]


@pytest.mark.drill
def test_samples_are_those_of_a_file(talk, translator):
    answers, _, _ = talk(["Norway\n", "Norway\n"], search={"sampling": True}, seed=3)
    search = Options(workdir=("a",), search={"sampling": True}).resolve(translator.cfg.search)
    expected = library.translate(translator, TextRequest(search, ["Norway"] * 2, key=jax.random.key(3)))
    assert answers == [f"{result.best.text}\n" for result in expected]
    assert answers[0] != answers[1]


def test_bytes_that_are_no_text_are_named(trained, monkeypatch):
    monkeypatch.setattr("sys.stdin", Typist([b"a\n", b"b\xff\n"], lambda: None))
    lines = interactive.typed_lines(pytest.fail)
    assert next(lines) == "a"
    with pytest.raises(UserError, match=r"^standard input, line 2: byte 0xff is not UTF-8; convert it, for .* utf-8$"):
        next(lines)


def test_an_interrupt_is_passed_on(trained, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdin", Typist([], interrupt))
    with pytest.raises(KeyboardInterrupt):
        interactive.interact(Options(workdir=(str(trained),), interactive=True), tell=lambda _: None)


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_prompt_never_mixes_with_redirected_answers(monkeypatch, capsys):
    """The keyboard is a terminal, the output a file: the prompt goes to standard error."""
    monkeypatch.setattr("sys.stdin", Terminal("a\nb\n"))
    assert list(interactive.typed_lines(pytest.fail)) == ["a", "b"]
    assert capsys.readouterr() == ("", interactive.PROMPT * 3)


def test_a_byte_order_mark_is_dropped_as_from_a_file(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("\ufeffNorway\r\n\ufeffSpain".encode())))
    assert list(interactive.typed_lines(pytest.fail)) == ["Norway", "\ufeffSpain"]


@pytest.mark.parametrize("shown", [False, True], ids=["redirected answers", "readline"])
def test_typed_bytes_that_are_no_text_are_named_in_the_locale_c_and_the_next_line_is_read(monkeypatch, shown):
    """There, Python reads them as surrogates, which no vocabulary can encode."""
    monkeypatch.setattr("sys.stdin", Terminal("a\nNo\udcffrway\nb\n"))
    monkeypatch.setattr("sys.stdout", Terminal() if shown else io.StringIO())
    told = []
    assert list(interactive.typed_lines(told.append)) == ["a", "b"]
    assert told == [
        "standard input, line 2: byte 0xff is not UTF-8; type the sentence again, or set LANG to the encoding of the "
        "terminal"
    ]


def test_standard_input_that_cannot_be_read_is_named(monkeypatch):
    def fail():
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    monkeypatch.setattr("sys.stdin", Typist([], fail))
    with pytest.raises(UserError, match=r"^standard input cannot be read: Bad file descriptor; redirect a file to it$"):
        next(interactive.typed_lines(pytest.fail))


@pytest.mark.parametrize(
    ("terminal", "written"), [(False, "\u2581\u0142 \u20ac\n".encode()), (True, b"\\u2581\\u0142 \\u20ac\n")]
)
def test_answers_can_be_written_in_any_locale(monkeypatch, terminal, written):
    class Ascii(io.TextIOWrapper):
        def isatty(self):
            return terminal

    raw = io.BytesIO()
    monkeypatch.setattr("sys.stdout", Ascii(raw, encoding="ascii"))
    interactive._print("\u2581\u0142 \u20ac\n")
    assert raw.getvalue() == written
