"""`convs2s prepare` leaves what the training that follows would make first, and nothing else."""

import pytest

from convs2s_jax.commands import prepare
from convs2s_jax.training.run.loop import train
from tests import tiny


def test_a_training_finds_what_was_prepared(tmp_path, capsys):
    workdir, config = tmp_path / "run", tiny.config_file(tmp_path)
    prepare.console(["convs2s prepare", f"--config={config}", f"--workdir={workdir}"])
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


@pytest.mark.drill
def test_a_run_that_began_with_other_text_is_refused(tmp_path, capsys):
    text, workdir = tmp_path / "text", tmp_path / "run"
    text.mkdir()
    for split in ("train", "valid"):
        for side in ("in", "out"):
            (text / f"{split}.{side}").write_text("a b\nb c\n" * 20)
    values = {**tiny.files(text), "data__vocabulary": {"kind": "words", "min_count": 1}}
    train(tiny.config(**values, training__max_steps=1), workdir)
    flags = [f"--config={tiny.config_file(tmp_path, **values, training__max_steps=1)}", f"--workdir={workdir}"]
    prepare.console(["convs2s prepare", *flags])
    assert "continues from here" in capsys.readouterr().err
    (text / "train.in").write_text("a b\nb b\n" * 20)
    with pytest.raises(SystemExit) as ended:
        prepare.console(["convs2s prepare", *flags])
    assert (ended.value.code, "goes on" in capsys.readouterr().err) == (2, False)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--config=cldr_en_de"], "--workdir is missing, as in --config=cldr_en_de --workdir=runs/a"),
        (["--config=cldr_en_de", "--workdir=gs://a/b"], "--workdir is gs://a/b: gs:// is not supported here"),
        (
            ["--config=cldr_en_de", "--workdir=a", "--config.mesh.rules=[['conf/w', [None, None, 'tensor']]]"],
            "mesh.rules[0].path is 'conf/w': it matches no parameter that earlier rules leave",
        ),
        (
            ["--config=cldr_en_de", "--workdir=a", "--config.mesh.rules=[['b', [None]]]", "--config.parallel=pmap"],
            "mesh.rules is set with parallel=pmap, which replicates all parameters; drop it, or use jit",
        ),
        (
            ["--config=cldr_en_de", "--workdir=a", "--config.mesh.gather_once=['w']"],
            "mesh.gather_once is ['w']: this version has no such field; leave it out, or use version f02697ce",
        ),
        (
            ["--config=cldr_en_de", "--workdir=a", "--config.training.bleu_tokenize=13b"],
            "bleu_tokenize is '13b'; did you mean",
        ),
        (
            ["--config=cldr_en_de", "--workdir=a", "--config.search.beam_size=0"],
            "search.beam_size is 0: use a value between 1 and 10000",
        ),
        (["--config=cldr_en_de", "--workdir=a", "--config.data.dir=b"], "data.dir is set, but data.corpus 'cldr'"),
    ],
)
def test_mistakes_are_sentences(tmp_path, monkeypatch, capsys, flags, sentence):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        prepare.console(["convs2s prepare", *flags])
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
