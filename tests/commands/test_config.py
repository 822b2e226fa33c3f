"""Mistakes in the flags of `convs2s config`: one sentence each, with a way out that exists."""

import pytest

from convs2s_jax.commands import config
from tests.processes import called


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--config.seed=2"], "--config.seed: there is no configuration to put it in; give --config=NAME"),
        (
            ["--config=cldr_en_de", "--source", "--config.seed=2"],
            "--config.seed with --source: the file is printed as it is; leave one out",
        ),
        (["--config=cldr_en_de", "--devices=4"], "--devices=4 without --shardings: a configuration has no devices"),
    ],
)
def test_what_is_not_used_is_refused(arguments, sentence):
    ended = called(lambda given: config.console(["config", *given]), *arguments)
    assert ended.returncode == 2
    assert sentence in ended.stderr
