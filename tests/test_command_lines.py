"""train.py and decode.py as started by a user: one sentence and status 2 for a mistake, one line out for one in."""

import json
import shutil
import subprocess
import sys

import pytest

from convs2s_jax.training.loop import train
from tests import tiny


def run(program, *arguments, text="", largest_file=None):
    command = [sys.executable, program, *map(str, arguments)]
    if largest_file is not None:  # writing beyond fails as it does on a full disk
        command = ["prlimit", f"--fsize={largest_file}", *command]
    return subprocess.run(command, cwd=tiny.ROOT, input=text, capture_output=True, text=True, timeout=240, check=False)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("trained") / "run"
    train(tiny.config(training__max_steps=3, training__save_every=1), workdir)
    return workdir


def refused(result):
    """The one sentence of a mistake."""
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "train.py: --config is missing: train.py --config=configs/cldr_en_de.py --workdir=runs/demo"),
        (["--config=configs/no.py"], "train.py: --workdir is missing"),
        (["--config=configs/no.py", "--workdir={tmp}/w"], "train.py: --config=configs/no.py: there is no such file"),
        (
            ["--config=configs/cldr_en_de.py", "--workdir={tmp}/w", "--config.model.droput=0.3"],
            "config.model.droput: there is no field 'droput'; did you mean 'dropout'?",
        ),
        (
            ["--config=configs/cldr_en_de.py", "--workdir={tmp}/w", "--config.model.dropout=much"],
            "config.model.dropout is 'much': expected a number",
        ),
        (
            ["--config=configs/cldr_en_de.py", "--workdir={tmp}/w", "--config.model.encoder.layers=[(64, 0)]"],
            "config.model.encoder.layers[0].width is 0: a convolution sees at least one position; use 1 or more",
        ),
        (["--workdri=x"], "Unknown command line flag 'workdri'. Did you mean: workdir ?"),
        (
            ["--config=configs/multi30k_de_en.py", "--workdir={tmp}/w", "--config.data.dir={tmp}"],
            "train.de",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_training_refuses_with_one_sentence(tmp_path, arguments, sentence):
    result = run("train.py", *(argument.format(tmp=tmp_path) for argument in arguments))
    assert sentence in refused(result)


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit (util-linux) bounds the size of files here")
def test_a_full_disk_is_told_in_a_sentence(tmp_path):
    config = tiny.config_file(tmp_path)
    result = run("train.py", f"--config={config}", f"--workdir={tmp_path}/run", largest_file=4000)
    assert "File too large; make room" in refused(result)


def test_decoding_refuses_with_one_sentence(tmp_path, trained):
    assert "--workdir is missing" in refused(run("decode.py"))
    assert "there is no such folder" in refused(run("decode.py", f"--workdir={tmp_path}/no"))
    assert "holds no config.json" in refused(run("decode.py", f"--workdir={tmp_path}"))
    empty = tmp_path / "empty"
    shutil.copytree(trained, empty, ignore=shutil.ignore_patterns("checkpoints"))
    assert "there is no checkpoint here" in refused(run("decode.py", f"--workdir={empty}"))
    assert "no checkpoint of step 77; it has" in refused(run("decode.py", f"--workdir={trained}", "--checkpoint=77"))
    (tmp_path / "two").write_text("a\nb\n")
    sentence = refused(run("decode.py", f"--workdir={trained}", f"--reference={tmp_path}/two", text="1\n"))
    assert "has 1 lines" in sentence
    assert "each line needs its reference" in sentence
    output = f"--output={tmp_path}/no/out"
    assert "cannot be written" in refused(run("decode.py", f"--workdir={trained}", output, text="1\n"))
    assert "beam_size is 0" in refused(run("decode.py", f"--workdir={trained}", "--beam_size=0", text="1\n"))


def test_one_line_in_gives_one_line_out(tmp_path, trained):
    lines = ["5 kilowatts", "", "1 2 " * 60, "Norway", "   ", "\u2028 odd", "Norway"]
    result = run("decode.py", f"--workdir={trained}", text="".join(line + "\n" for line in lines))
    assert result.returncode == 0, result.stderr
    out = result.stdout.split("\n")
    assert len(out) == len(lines) + 1
    assert out[1] == ""
    assert out[4] == ""
    assert out[3] == out[6]
    assert "standard input, line 3: the last " in result.stderr
    assert "line 4" not in result.stderr


def test_scores_of_a_split_come_with_signatures(trained, tmp_path):
    output = tmp_path / "out"
    result = run("decode.py", f"--workdir={trained}", "--split=test", f"--output={output}", "--show=1")
    assert result.returncode == 0, result.stderr
    assert len(output.read_text().splitlines()) == tiny.VALUES["data"]["cldr"]["test"]
    for part in ("BLEU", "tok:13a", "chrF2", "exact match", "  source  ", "  reference"):
        assert part in result.stderr


def test_a_damaged_checkpoint_gives_way_to_another_and_is_named(trained, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(trained, workdir)
    for path in (workdir / "checkpoints" / "3" / "params").rglob("d/*"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    result = run("decode.py", f"--workdir={workdir}", text="Norway\n")
    assert result.returncode == 0, result.stderr
    assert "the checkpoint of step 3 is damaged" in result.stderr
    assert result.stdout.count("\n") == 1


def test_metrics_have_the_promised_fields(trained):
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    common = {"step", "epoch", "split", "loss", "perplexity"}
    trains = [line for line in lines if line["split"] == "train"]
    valids = [line for line in lines if line["split"] == "valid"]
    others = {"learning_rate", "grad_norm", "tokens_per_second", "input_wait", "padding", "compilations"}
    tests = [line for line in lines if line["split"] == "test"]
    assert trains
    assert valids
    assert len(tests) == 1
    assert tests[0]["step"] == min(valids, key=lambda line: line["loss"])["step"]
    assert all(set(line) == common | others for line in trains)
    assert all(common <= set(line) for line in valids + tests)
