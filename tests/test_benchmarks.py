"""The scripts of benchmarks/ that nobody runs daily: preparing KFTT, several seeds, the accelerator's one call."""

import argparse
import gzip
import hashlib
import importlib
import json
import subprocess
import sys

import pytest

from tests import tiny

FOLDER = tiny.ROOT / "benchmarks"


@pytest.fixture
def script(monkeypatch):
    """Import a script by name, as the interpreter does that runs it."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module


def test_kftt_keeps_short_training_pairs_and_all_others(script, tmp_path):
    kftt = script("prepare_kftt")
    limits = [("ア" * 57, "a " * 40), ("ア" * 58, "a"), ("ｱ（１）", "a,"), ("ア", "a " * 41), ("", "a"), ("ア", "")]
    for split in kftt.SPLITS:
        for side, texts in zip(("ja", "en"), zip(*limits, strict=True), strict=True):
            (tmp_path / f"{split}.{side}").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    kftt.prepare(tmp_path, tmp_path / "out", lambda text: " ".join(text.replace(",", " ,").split()))

    def read(name):
        return gzip.decompress((tmp_path / "out" / name).read_bytes()).decode().splitlines()

    assert read("train.ja.gz") == ["ア" * 57, "ア(1)"]
    assert read("train.en.gz") == [" ".join("a" * 40), "a ,"]
    assert len(read("test.ja.gz")) == len(read("valid.en.gz")) == len(limits)


def test_the_functions_that_the_time_of_a_start_is_attributed_to_exist(script):
    start = script("start")
    for place in (place for functions in start.WRAPPED.values() for place in functions):
        module, _, function = place.rpartition(".")
        assert callable(getattr(importlib.import_module(module), function, None)), place


def test_a_seed_that_has_its_scores_is_not_trained_again(script, tmp_path, monkeypatch):
    family = script("family")
    kind = family.Kind("gru", tmp_path / "gru.py", None, tmp_path)
    trained = []

    def run(one, seed, arguments, overrides):
        trained.append((seed, overrides))
        one.run(seed).mkdir()
        (one.run(seed) / "metrics.jsonl").write_text(f"{seed}")

    def scores_of(workdir, arguments):
        seed = int(workdir.suffix[1:])
        log = hashlib.sha256((workdir / "metrics.jsonl").read_bytes()).hexdigest()
        return {"perplexity": 5.0 + seed, "bleu": 40.0 - seed, "metrics.jsonl": log}

    monkeypatch.setattr(family, "run", run)
    monkeypatch.setattr(family, "scores_of", scores_of)
    arguments = argparse.Namespace(workdir=tmp_path, repeats=1, data="d")
    first = [family.scored(kind, seed, arguments, {"a": 1}) for seed in (1, 2, 3)]
    again = [family.scored(kind, seed, arguments, {"a": 1}) for seed in (1, 2, 3)]
    assert first == again
    assert trained == [(seed, {"a": 1}) for seed in (1, 2, 3)]
    with pytest.raises(SystemExit, match="run of another length"):
        family.scored(kind, 1, arguments, {"a": 2})
    assert family.mean(first, "perplexity") == "7.00 ± 1.00"
    assert family.mean(first[:1], "bleu") == "39.00"


@pytest.mark.drill
def test_the_accelerators_call_measures_every_part(tmp_path):
    command = [sys.executable, str(FOLDER / "accelerator.py"), "--small", "--minutes=1"]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert not [one for one in found if "error" in one]
    assert {one["part"] for one in found} == {"rates", "training", "shapes", "decoding", "int8", "convolutions"}
    shares = [one["share of the product"] for one in found if "share of the product" in one]
    assert all(float(value) > 0 for share in shares for value in share.split(" / "))


@pytest.mark.drill
def test_the_accelerators_call_measures_the_parts_that_are_asked_for():
    command = [sys.executable, str(FOLDER / "accelerator.py"), "--small", "--minutes=1", "--parts", "int8"]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    assert {json.loads(line)["part"] for line in output.splitlines() if line.startswith("{")} == {"rates", "int8"}


def test_the_accelerators_call_is_refused_without_one(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["accelerator.py"])
    with pytest.raises(SystemExit) as ended:
        script("accelerator").main()
    assert ended.value.code == 2
    assert "JAX sees no accelerator" in capsys.readouterr().err
