"""Options that contradict one another are refused, and the reason is given."""

import contextlib
import os

import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.search.config import SearchConfig
from convs2s_jax.translation.jobs.options import Options


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"workdir": ()}, "^--workdir is missing; set it, for example --workdir=runs/demo$"),
        ({"workdir": ("a", "")}, "^--workdir is missing"),
        ({"nbest": 0}, "^--nbest is 0: use 1 or more$"),
        ({"batch_size": 0}, "^--batch_size is 0: use 1 or more$"),
        ({"batch_tokens": -1}, "^--batch_tokens is -1: use 1 or more$"),
        ({"window": 0}, "^--window is 0: use 1 or more$"),
        ({"split": "test", "input": "x"}, "^--split provides its own source and reference; leave out --input and"),
        ({"split": "test", "reference": ("x",)}, "^--split provides its own"),
        ({"reference": ("x", "")}, "^--reference contains an empty file name"),
        ({"metrics": ("bleu",)}, "^--metrics without --reference: there is nothing to compare with"),
        ({"bleu_tokenize": "13a"}, "^--bleu_tokenize without --reference: "),
        ({"score": "x", "search": {"sampling": True, "top_k": 2}}, "^--score with --sampling, --top_k: given"),
        (
            {"corpus": (("data.dir", "x"),)},
            "^--config.data.dir without --split: the run's corpus is read only with --split; leave it out",
        ),
        ({"unk_dictionary": "x"}, "^--unk_dictionary without --replace_unk: words are replaced only with"),
        ({"nbest": 2}, "^--nbest=2 with --format=text: text has one line per source line; use --format=json"),
        ({"resume": True}, "^--resume without --output: what went to standard output cannot be read back; set --out"),
        *(
            (
                {"score": "x", name: value},
                f"^--score with --{name}: given translations are scored, and nothing is searched or",
            )
            for name, value in {
                "prefix": "x",
                "constraints": "x",
                "replace_unk": True,
                "reference": ("x",),
                "split": "test",
                "show": 1,
                "seed": 0,
            }.items()
        ),
        ({"score": "x", "nbest": 2, "format": "json"}, "^--score with --nbest: .*; leave one out$"),
        ({"score": "x", "search": {"sampling": True}}, "^--score with --sampling: given translations are scored, and"),
        ({"score": "x", "search": {"beam_size": 2, "stop": "exact"}}, "^--score with --beam_size, --stop: given"),
        *(
            (
                {"interactive": True, name: value},
                f"^--interactive with --{name}: lines are read from the terminal and answered",
            )
            for name, value in {
                "input": "x",
                "output": "x",
                "reference": ("x",),
                "show": 1,
                "split": "test",
                "score": "x",
                "prefix": "x",
                "constraints": "x",
                "batch_size": 3,
                "batch_tokens": 3,
                "window": 3,
            }.items()
        ),
        ({"split": "test", "prefix": "-", "constraints": "-"}, "^--prefix and --constraints read standard input"),
        (
            {"score": "-", "unk_dictionary": "-", "replace_unk": True},
            "^--score and --unk_dictionary read standard input",
        ),
        ({"interactive": True, "resume": True, "output": "x"}, "^--interactive with --"),
    ],
    ids=str,
)
def test_contradictions_are_refused(values, message):
    with pytest.raises(UserError, match=message):
        Options(**{"workdir": ("a",), **values})


@pytest.mark.parametrize(
    "search",
    [
        {"length_penalty": 0.5, "length_penalty_kind": "gnmt", "temperature": 2.0, "unk_penalty": 1.0},
        {"normalize": False, "coverage_penalty": 0.1},
    ],
    ids=str,
)
def test_what_has_a_part_in_a_score_goes_with_given_translations(search):
    assert Options(workdir=("a",), score="x", search=search).search == search
    assert Options(workdir=("a",), score="x", lm="b", search={"lm_weight": 0.1}).search == {"lm_weight": 0.1}


def test_the_input_is_not_written_over(tmp_path):
    path = tmp_path / "text"
    path.write_text("1\n")
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(UserError, match=f"^--output={link} is the file of --input, which would be overwritten"):
        Options(workdir=("a",), input=str(path), output=str(link))
    assert Options(workdir=("a",), input=str(path), output=str(tmp_path / "new"))


def test_given_options_replace_the_runs_own():
    own = SearchConfig(beam_size=2, length_penalty=0.7, temperature=2.0)
    options = Options(workdir=("a",), search={"beam_size": 8, "normalize": False})
    assert options.resolve(own) == SearchConfig(beam_size=8, length_penalty=0.7, temperature=2.0, normalize=False)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"search": {"beam_size": 0}}, "^--beam_size is 0"),
        ({"search": {"top_k": 3}}, "^--top_k is 3 without sampling: "),
        ({"search": {"top_p": 0.5}}, "^--top_p is 0.5 without sampling: "),
        ({"search": {"diverse_strength": -1.0}}, "^--diverse_strength is -1.0"),
        (
            {"nbest": 6, "format": "json"},
            "^--nbest=6 with a beam_size of 5: a search returns at most beam_size hypotheses",
        ),
        (
            {"constraints": "x", "search": {"sampling": True}},
            "^--constraints with --sampling: only plain beam search can enforce",
        ),
        ({"search": {"diverse_strength": 1.0}}, "^--diverse_strength without --diverse_groups: "),
        ({"search": {"length_penalty": 0.6, "normalize": False}}, "^--length_penalty with --nonormalize: "),
        ({"search": {"length_penalty_kind": "gnmt", "normalize": False}}, "^--length_penalty_kind with --nonorm"),
        (
            {"constraints": "x", "search": {"beam_size": 4, "diverse_groups": 2}},
            "^--constraints with --diverse_groups: ",
        ),
        ({"seed": 3}, "^--seed=3 without --sampling: beam search draws no random numbers; leave it out$"),
    ],
    ids=str,
)
def test_options_that_no_search_can_follow_are_refused(values, message):
    with pytest.raises(UserError, match=message):
        Options(workdir=("a",), **values).resolve(SearchConfig())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"replace_unk": True}, "^--replace_unk with a model without attention: .*; leave it out$"),
        ({"search": {"coverage_penalty": 0.2}}, r"^--coverage_penalty is 0\.2 .*; use --coverage_penalty=0$"),
    ],
    ids=str,
)
def test_what_needs_attention_is_refused_where_a_model_has_none(values, message):
    options = Options(workdir=("a",), **values)
    assert options.resolve(SearchConfig(), attends=True).beam_size == 5
    with pytest.raises(UserError, match=message):
        options.resolve(SearchConfig(), attends=False)


def test_the_file_behind_standard_input_is_not_written_over(tmp_path):
    """decode.py --output=text < text"""
    path = tmp_path / "text"
    path.write_text("1\n")
    with redirected(0, path, os.O_RDONLY):
        with pytest.raises(UserError, match=f"^--output={path} is the file of --input, which would be overwritten"):
            Options(workdir=("a",), output=str(path))
        Options(workdir=("a",), output=str(tmp_path / "other"))
        Options(workdir=("a",), output=str(path), split="test")  # nothing is read from there


@contextlib.contextmanager
def redirected(stream, path, flags):
    before, file = os.dup(stream), os.open(path, flags)
    os.dup2(file, stream)
    try:
        yield
    finally:
        os.dup2(before, stream)
        os.close(before)
        os.close(file)


def test_the_file_behind_standard_output_is_not_read(tmp_path):
    """decode.py --input=text >> text"""
    path = tmp_path / "text"
    path.write_text("1\n")
    with redirected(1, path, os.O_WRONLY):
        with pytest.raises(UserError, match=r"^standard output is the file of --input, which would be overwritten"):
            Options(workdir=("a",), input=str(path))
        Options(workdir=("a",), input=str(path), output=str(tmp_path / "other"))


@pytest.mark.parametrize("name", ["reference", "prefix", "constraints", "score"])
def test_no_file_that_is_read_is_written(tmp_path, name):
    path = tmp_path / "x"
    path.write_text("\n")
    with pytest.raises(UserError, match=f"is the file of --{name}, which would be overwritten; choose another file"):
        Options(workdir=("w",), output=str(path), **{name: (str(path),) if name == "reference" else str(path)})


def test_standard_input_is_read_once():
    with pytest.raises(UserError, match=r"^--input and --prefix read standard input, which can be read only once"):
        Options(workdir=("w",), prefix="-")
    with pytest.raises(UserError, match=r"^--input and --reference read standard input, which can be read only once"):
        Options(workdir=("w",), input="/dev/stdin", reference=("/dev/stdin",))


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seeds_beyond_their_range_are_refused(seed):
    with pytest.raises(UserError, match=f"^--seed={seed}: expected an integer between 0 and 4294967295$"):
        Options(workdir=("w",), seed=seed)


def test_as_many_samples_as_are_wanted():
    def drawn(**values):
        return Options(workdir=("w",), **values).resolve(SearchConfig(beam_size=5)).beam_size

    assert drawn(search={"sampling": True}) == 1
    assert drawn(search={"sampling": True}, nbest=3, format="json") == 3
    assert drawn(search={"sampling": True, "beam_size": 4}) == 4


def test_samples_are_drawn_to_their_end():
    for given, fine in (
        ({"sampling": True}, True),
        ({"sampling": True, "stop": "exact"}, False),
        ({"stop": "exact"}, True),
    ):
        options = Options(workdir=("a",), search=given)
        if fine:
            options.resolve(SearchConfig())
        else:
            with pytest.raises(
                UserError, match=r"^--stop with --sampling: each sample is drawn to its end; leave one out$"
            ):
                options.resolve(SearchConfig())
