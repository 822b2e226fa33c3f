"""Sentences as they are typed: an answer before the next one is read, and nothing compiled for it."""

import io
import json

import jax
import numpy as np
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.search import shortlist
from convs2s_jax.search.shortlist import Shortlist
from convs2s_jax.training.run.compilations import CompileCounter
from convs2s_jax.translation import lines as library
from convs2s_jax.translation import shortlists
from convs2s_jax.translation.jobs import decoding
from convs2s_jax.translation.jobs.options import Options
from convs2s_jax.translation.lines import TextRequest
from tests.helpers import drills_but


class Typist(io.RawIOBase):
    """Standard input whose reader is looked at each time it asks for a line."""

    def __init__(self, lines, look=lambda: None, terminal=False):
        super().__init__()
        self.lines, self.look, self.terminal = iter(lines), look, terminal
        self.buffer = self

    def isatty(self):
        return self.terminal

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
            decoding.decode(Options(workdir=(str(trained),), interactive=True, **options), tell=told.append)
        return answers[1:], told, compiled

    return talk


def test_answers_come_at_once_and_are_those_of_a_file(talk, translator, lines):
    answers, told, _ = talk([f"{line}\n" for line in lines[:-1]] + [lines[-1]])
    expected = library.translate(translator, TextRequest(translator.cfg.search, lines))
    assert answers == [f"{result.best.text}\n" for result in expected]
    assert told == ["compiling ...", "ready: type one sentence per line; Ctrl-D ends"]


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


def test_lines_are_numbered_and_cuts_named(talk):
    answers, told, _ = talk(["Norway\n", "\r\n", "1 " * 80 + "\r\n"], format="json")
    records = [json.loads(answer) for answer in answers]
    assert [(record["line"], record["source"]) for record in records] == [(0, "Norway"), (1, ""), (2, "1 " * 80)]
    assert told[2].startswith("standard input, line 3: too long for the model's positions; left out at its end: ")


@pytest.mark.drill
def test_samples_are_those_of_a_file(talk, translator):
    answers, _, _ = talk(["Norway\n", "Norway\n"], search={"sampling": True}, seed=3)
    search = Options(workdir=("a",), search={"sampling": True}).resolve(translator.cfg.search)
    expected = library.translate(translator, TextRequest(search, ["Norway"] * 2, key=jax.random.key(3)))
    assert answers == [f"{result.best.text}\n" for result in expected]
    assert answers[0] != answers[1]


def test_the_prompt_goes_to_standard_error_and_odd_bytes_are_named(monkeypatch, capsys):
    typed = Typist(["\ufeffNorway\r\n".encode(), "\ufeffSpain\n".encode(), b"b\xff\n"], terminal=True)
    monkeypatch.setattr("sys.stdin", typed)
    lines = decoding.typed_lines()
    assert [next(lines), next(lines)] == ["Norway", "\ufeffSpain"]
    with pytest.raises(UserError, match=r"^standard input, line 3: byte 0xff is not UTF-8; convert it, for .* utf-8$"):
        next(lines)
    assert capsys.readouterr() == ("", decoding.PROMPT * 3)
