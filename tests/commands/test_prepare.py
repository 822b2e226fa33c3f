"""`convs2s prepare` leaves what the training that follows would make first, and nothing else."""

import pytest

from convs2s_jax.commands.convs2s import COMMANDS
from convs2s_jax.training.run.loop import train
from tests import tiny
from tests.processes import called


def test_a_training_finds_what_was_prepared(tmp_path, capsys):
    workdir, config = tmp_path / "run", tiny.config_file(tmp_path)
    COMMANDS["prepare"].run(["convs2s prepare", f"--config={config}", f"--workdir={workdir}"])
    told = capsys.readouterr().err.splitlines()
    [learned] = (workdir / "cache" / "vocab").iterdir()
    assert told[0] == f"learning the vocabularies from the training text: {learned}"
    assert told[-2].startswith("batches: ")
    assert told[-1] == "prepared: convs2s train with the same flags continues from here"
    assert [path.name for path in workdir.iterdir()] == ["cache"]
    kept = {path: path.stat().st_mtime_ns for path in workdir.rglob("*.tokens")}
    train(tiny.config(training__max_steps=1), workdir)
    log = (workdir / "train.log").read_text()
    assert "reusing the vocabularies that an earlier start learned" in log
    assert all(sentence in log for sentence in told[1:-1])
    assert {path: path.stat().st_mtime_ns for path in workdir.rglob("*.tokens")} == kept


PREPARE, CONFIG = ["prepare", "--config=cldr_en_de", "--workdir=a"], ["config", "--config=cldr_en_de"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["prepare", "--config=cldr_en_de"], "--workdir is missing, as in --config=cldr_en_de --workdir=runs/a"),
        (["prepare", "--config=x", "--workdir=gs://a/b"], "--workdir is gs://a/b: gs:// is not supported here"),
        (
            [*PREPARE, "--config.mesh.rules=[['conf/w', [None, None, 'tensor']]]"],
            "mesh.rules[0].path is 'conf/w': it matches no parameter that earlier rules leave",
        ),
        (
            [*PREPARE, "--config.mesh.rules=[['b', [None]]]", "--config.parallel=pmap"],
            "mesh.rules is set with parallel=pmap, which replicates all parameters; drop it, or use jit",
        ),
        (
            [*PREPARE, "--config.mesh.gather_once=['w']"],
            "mesh.gather_once is ['w']: this version has no such field; leave it out, or use version f02697ce",
        ),
        ([*PREPARE, "--config.training.bleu_tokenize=13b"], "bleu_tokenize is '13b'; did you mean"),
        ([*PREPARE, "--config.search.beam_size=0"], "search.beam_size is 0: use a value between"),
        ([*PREPARE, "--config.data.dir=b"], "data.dir is set, but data.corpus 'cldr'"),
        (["config", "--config.seed=2"], "--config.seed: there is no configuration to change; add --config=NAME"),
        ([*CONFIG, "--source", "--config.seed=2"], "--config.seed with --source: the file is printed unchanged;"),
        ([*CONFIG, "--shardings=0"], "--shardings=0: use 1 or more devices"),
    ],
)
def test_mistakes_are_sentences(tmp_path, monkeypatch, flags, sentence):
    monkeypatch.chdir(tmp_path)
    ended = called(COMMANDS[flags[0]].run, *flags)
    assert ended.returncode == 2
    assert sentence in ended.stderr
    assert not list(tmp_path.iterdir())
