"""Flags of decoding come from the fields of two records, and each can be given in one way or another."""

import pytest

from convs2s_jax.commands import decode
from convs2s_jax.core import command_line
from convs2s_jax.core.errors import UserError
from convs2s_jax.translation.jobs.options import Options


def options(*arguments):
    return decode.options(*command_line.parse(decode.COMMAND, ["--workdir=a", *arguments]))


def test_flags_become_the_types_of_their_fields():
    found = options(
        *("--workdir=a,b", "--checkpoint=10,20", "--dtype=bfloat16", "--input=2016", "--show", "3", "--resume"),
        *("--output=o", "--beam_size=7", "--length_penalty=1", "--stop=fairseq", "--sampling", "--seed=0"),
    )
    search = {"beam_size": 7, "length_penalty": 1.0, "stop": "fairseq", "sampling": True}
    assert found == Options(
        workdir=("a", "b"),
        checkpoint=("10", "20"),
        dtype="bfloat16",
        input="2016",
        show=3,
        resume=True,
        output="o",
        seed=0,
        search=search,
    )
    assert isinstance(found.search["length_penalty"], float)


def test_a_comma_belongs_to_the_name_of_a_file_that_exists(tmp_path):
    (tmp_path / "a,b.de").touch()
    assert options(f"--reference={tmp_path}/a,b.de").reference == (f"{tmp_path}/a,b.de",)
    assert options(f"--reference={tmp_path}/a,c.de").reference == (f"{tmp_path}/a", "c.de")


def test_an_override_of_the_search_is_the_flag():
    assert options().search == {}
    for given in (["--nonormalize"], ["--normalize=false"], ["--config.search.normalize=False"]):
        assert options(*given).search == {"normalize": False}
    given = options("--beam_size=2", "--config.search.beam_size=7", "--config.search.stop", "fairseq")
    assert given.search == {"beam_size": 7, "stop": "fairseq"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config.search.beam=7"], "^--config.search.beam: there is no field 'beam'; did you mean 'beam_size'"),
        (["--config.search.beam_size=x"], "^--config.search.beam_size is 'x': expected an integer$"),
        (
            ["--config.model.dropout=0"],
            "^--config.model.dropout: decoding uses the configuration in --workdir; only",
        ),
        (["--beam_size=two"], "^--beam_size is 'two': expected an integer$"),
        (["--stop=fairsq"], "^--stop is 'fairsq'; did you mean 'fairseq'"),
        (["--split=dev"], "^--split is 'dev'; available: test, train, valid$"),
        (["--resume=perhaps"], "^--resume is 'perhaps': expected True or False$"),
        (["--show=-1"], "^--show is -1: use 0 or more$"),
        (["line"], "^line: expected arguments of the form --name=value; see --help$"),
    ],
    ids=str,
)
def test_a_wrong_value_is_one_sentence(arguments, message):
    with pytest.raises(UserError, match=message):
        options(*arguments)
