"""Sentences as they are typed: an answer before the next one is read, and nothing compiled for it."""

import io
import json

import jax
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.training.run.compilations import CompileCounter
from convs2s_jax.translation import lines as library
from convs2s_jax.translation.jobs import decoding
from convs2s_jax.translation.jobs.options import Options
from convs2s_jax.translation.lines import TextRequest


class Typist(io.RawIOBase):
    """Standard input whose reader is looked at each time it asks for a line."""

    def __init__(self, lines, look=lambda: None, terminal=False):
        super().__init__()
        self.lines, self.look, self.terminal = iter(lines), look, terminal
        self.buffer = self

    def isatty(self):
        return self.terminal

    def readable(self):
        return True

    def readinto(self, buffer):
        self.look()
        line = next(self.lines, b"")
        buffer[: len(line)] = line
        return len(line)


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
        return [answer for answer in (*answers, capsys.readouterr().out) if answer], told, compiled

    return talk


def test_answers_come_at_once_and_are_those_of_a_file(talk, translator, lines):
    answers, told, _ = talk([f"{line}\n" for line in lines[:-1]] + [lines[-1]])
    expected = library.translate(translator, TextRequest(translator.cfg.search, lines))
    assert answers == [f"{result.best.text}\n" for result in expected]
    assert told == ["compiling ...", "ready: type one sentence per line; Ctrl-D ends"]


def test_no_sentence_needs_a_compilation(talk):
    """From one token to the 63 that the width allows."""
    jax.clear_caches()  # of the tests before
    lines = ["5\n", "Norway\n", "\n", "a (b), c £5.00 at 12:30\n", "1 2 " * 15 + "\n", "a\n"]
    answers, _, compiled = talk(lines, format="json", nbest=2)
    assert len(answers) == 6
    assert compiled[0] > 0
    assert set(compiled) == {compiled[0]}


def test_lines_are_numbered_and_cuts_named(talk):
    answers, told, _ = talk(["Norway\n", "\r\n", "1 " * 80 + "\r\n"], format="json")
    records = [json.loads(answer) for answer in answers]
    assert [(record["line"], record["source"]) for record in records] == [(0, "Norway"), (1, ""), (2, "1 " * 80)]
    assert told[2].startswith("standard input, line 3: too long for the model's positions; left out at its end: ")


def test_the_prompt_goes_to_standard_error_and_odd_bytes_are_named(monkeypatch, capsys):
    typed = Typist(["\ufeffNorway\r\n".encode(), "\ufeffSpain\n".encode(), b"b\xff\n"], terminal=True)
    monkeypatch.setattr("sys.stdin", typed)
    lines = decoding.typed_lines()
    assert [next(lines), next(lines)] == ["Norway", "\ufeffSpain"]
    with pytest.raises(
        UserError, match=r"^standard input, line 3: byte 0xff is not UTF-8; convert the file, for .* utf-8$"
    ):
        next(lines)
    assert capsys.readouterr() == ("", decoding.PROMPT * 3)
