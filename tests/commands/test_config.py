"""Mistakes in the flags of `convs2s config`: one sentence each, with a way out that exists."""

import pytest

from convs2s_jax.commands import config
from tests.processes import called


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--config.seed=2"], "--config.seed: there is no configuration to change; add --config=NAME"),
        (
            ["--config=cldr_en_de", "--source", "--config.seed=2"],
            "--config.seed with --source: the file is printed unchanged; remove one of them",
        ),
        (["--config=cldr_en_de", "--devices=4"], "--devices=4 without --shardings: it applies to --shardings only"),
    ],
)
def test_what_is_not_used_is_refused(arguments, sentence):
    ended = called(lambda given: config.console(["config", *given]), *arguments)
    assert ended.returncode == 2
    assert sentence in ended.stderr
