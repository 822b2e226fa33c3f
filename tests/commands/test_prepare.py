"""`convs2s prepare` leaves what the training that follows would make first, and nothing else."""

import pytest

from convs2s_jax.commands import prepare
from convs2s_jax.training.run.loop import train
from tests import tiny


def test_a_training_finds_what_was_prepared(tmp_path, capsys):
    workdir, config = tmp_path / "run", tiny.config_file(tmp_path)
    prepare.console(["convs2s prepare", f"--config={config}", f"--workdir={workdir}"])
    told = capsys.readouterr().err.splitlines()
    assert told[0] == "learning the vocabularies from the training text"
    assert told[-2].startswith("batches: ")
    assert told[-1] == "prepared: convs2s train with the same flags goes on from here"
    assert [path.name for path in workdir.iterdir()] == ["cache"]
    kept = {path: path.stat().st_mtime_ns for path in workdir.rglob("*.tokens")}
    train(tiny.config(training__max_steps=1), workdir)
    log = (workdir / "train.log").read_text()
    assert "the vocabularies that an earlier start has learned are used again" in log
    assert all(sentence in log for sentence in told[1:-1])
    assert {path: path.stat().st_mtime_ns for path in workdir.rglob("*.tokens")} == kept


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--config=cldr_en_de"], "--workdir is missing, as in --config=cldr_en_de --workdir=runs/a"),
        (["--config=cldr_en_de", "--workdir=gs://a/b"], "--workdir is gs://a/b: gs:// is not supported here"),
        (["--config=cldr_en_de", "--workdir=a", "--config.data.dir=b"], "data.dir is given, and data.corpus 'cldr'"),
    ],
)
def test_mistakes_are_sentences(tmp_path, monkeypatch, capsys, flags, sentence):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        prepare.console(["convs2s prepare", *flags])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
