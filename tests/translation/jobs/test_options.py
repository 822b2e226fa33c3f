"""Options that contradict one another are refused, and the reason is given."""

import os

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.translation.jobs.options import Options

SCORE = {"prefix": "x", "constraints": "x", "replace_unk": True, "reference": ("x",), "split": "test", "show": 1}
TYPED = {"input": "x", "output": "x", "reference": ("x",), "split": "test", "score": "x", "prefix": "x", "window": 3}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"workdir": ()}, "^--workdir is missing; set it, for example --workdir=runs/demo$"),
        ({"workdir": ("a", "")}, "^--workdir is missing"),
        ({"nbest": 0}, "^--nbest is 0: use 1 or more$"),
        ({"batch_tokens": -1}, "^--batch_tokens is -1: use 1 or more$"),
        ({"show": -1}, "^--show is -1: use 0 or more$"),
        ({"split": "test", "input": "x"}, "^--split with --input: it brings its own source and reference; leave one"),
        ({"reference": ("x", "")}, "^--reference contains an empty file name"),
        ({"metrics": ("bleu",)}, "^--metrics without --reference or --split: there is nothing to compare with"),
        ({"bleu_tokenize": "13a"}, "^--bleu_tokenize without --reference or --split: "),
        ({"score": "x", "search": {"sampling": True, "top_k": 2}}, "^--score with --sampling, --top_k: given"),
        ({"score": "x", "nbest": 2, "format": "json"}, "^--score with --nbest: .*; leave one out$"),
        ({"corpus": (("data.dir", "x"),)}, "^--config.data.dir without --split: the run's corpus is read only with"),
        ({"unk_dictionary": "x"}, "^--unk_dictionary without --replace_unk: words are replaced only with it; set both"),
        ({"nbest": 2}, "^--nbest=2 with --format=text: text has one line per source line; use --format=json"),
        ({"resume": True}, "^--resume without --output: what went to standard output cannot be read back; set both"),
        ({"parts": 2, "output": "x"}, "^--parts without --input or --score: each process reads the text; set both$"),
        ({"output": "out.gz"}, r"out.gz: the output is not compressed; leave out --output and append \| gzip"),
        ({"lm": "x"}, "^--lm without --lm_weight: a language model and its weight go together, as in --lm=runs/lm"),
        ({"search": {"lm_weight": 1}}, "^--lm_weight without --lm: "),
        *(({"score": "x", name: value}, f"^--score with --{name}: given tra") for name, value in SCORE.items()),
        *(({"interactive": True, name: value}, f"^--interactive with --{name}") for name, value in TYPED.items()),
        ({"split": "test", "prefix": "-", "constraints": "-"}, "^--prefix and --constraints read standard input"),
        ({"prefix": "-"}, "^--input and --prefix read standard input, which can be read only once; use files"),
        ({"input": "/dev/stdin", "reference": ("-",)}, "^--input and --reference read standard input"),
        ({"seed": -1, "search": {"sampling": True}}, "^--seed=-1: expected an integer between 0 and 4294967295$"),
        ({"seed": 2**32}, "^--seed=4294967296: expected an integer between 0 and 4294967295$"),
    ],
    ids=str,
)
def test_contradictions_are_refused(values, message):
    with pytest.raises(UserError, match=message):
        Options(**{"workdir": ("a",), **values})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"search": {"beam_size": 0}}, "^--beam_size is 0"),
        ({"search": {"top_p": 0.5}}, "^--top_p is 0.5 without sampling, "),
        ({"nbest": 6, "format": "json"}, "^--nbest=6 with a beam_size of 5: a search returns at most beam_size hyp"),
        ({"constraints": "x", "search": {"sampling": True}}, "^--constraints with --sampling: only beam search"),
        ({"search": {"length_penalty": 0.6, "normalize": False}}, "^--length_penalty with --nonormalize has no effect"),
        ({"search": {"sampling": True, "stop": "exact"}}, "^--stop with --sampling has no effect: leave one out$"),
        ({"seed": 3}, "^--seed=3 without --sampling: beam search draws no random numbers; leave it out$"),
        ({"replace_unk": True}, "^--replace_unk with a model without attention: .*; leave it out$"),
        ({"search": {"coverage_penalty": 0.2}}, r"^--coverage_penalty is 0\.2 .*; use --coverage_penalty=0$"),
    ],
    ids=str,
)
def test_options_that_no_search_can_follow_are_refused(values, message):
    with pytest.raises(UserError, match=message):
        Options(workdir=("a",), **values).resolve(SearchConfig(), attends=False)


def test_what_has_a_part_in_a_score_goes_with_given_translations():
    search = {"length_penalty": 0.5, "length_penalty_kind": "gnmt", "temperature": 2.0, "lm_weight": 0.1}
    assert Options(workdir=("a",), score="x", lm="b", search=search).search == search


def test_given_options_replace_the_runs_own_and_as_many_samples_are_drawn_as_are_wanted():
    def resolved(**values):
        return Options(workdir=("a",), **values).resolve(SearchConfig(beam_size=5, temperature=2.0))

    assert resolved(search={"beam_size": 8, "normalize": False}) == SearchConfig(
        beam_size=8, temperature=2.0, normalize=False
    )
    assert resolved(search={"sampling": True}).beam_size == 1
    assert resolved(search={"sampling": True}, nbest=3, format="json").beam_size == 3
    assert resolved(search={"sampling": True, "beam_size": 4}).beam_size == 4


@pytest.mark.parametrize("name", ["input", "reference", "prefix", "constraints", "score"])
def test_no_file_that_is_read_is_written_over(tmp_path, name):
    path, link = tmp_path / "text", tmp_path / "link"
    path.write_text("1\n")
    link.symlink_to(path)
    given = {name: (str(path),) if name == "reference" else str(path)}
    with pytest.raises(UserError, match=f"^--output={link} is the file of --{name}, which would be overwritten"):
        Options(workdir=("a",), output=str(link), **given)
    assert Options(workdir=("a",), output=str(tmp_path / "new"), **given)


def test_the_file_behind_standard_input_is_not_written_over(tmp_path):
    """decode.py --output=text < text"""
    path = tmp_path / "text"
    path.write_text("1\n")
    before, file = os.dup(0), os.open(path, os.O_RDONLY)
    os.dup2(file, 0)
    try:
        with pytest.raises(UserError, match=f"^--output={path} is the file of --input, which would be overwritten"):
            Options(workdir=("a",), output=str(path))
        Options(workdir=("a",), output=str(path), split="test")  # nothing is read from there
    finally:
        os.dup2(before, 0)
        os.close(before)
        os.close(file)
