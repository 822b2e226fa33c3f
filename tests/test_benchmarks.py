"""The scripts of benchmarks/ that nobody runs daily: preparing KFTT, several seeds, the accelerator's one call."""

import argparse
import gzip
import hashlib
import importlib
import itertools
import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
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
    for name, functions in start.WRAPPED.items():
        module = importlib.import_module(start.MODULES[name])
        assert [function for function in functions if not callable(getattr(module, function, None))] == []


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


def other_program(code):
    return subprocess.Popen(
        [sys.executable, "-u", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )


def test_the_other_programs_messages_are_no_answers(script):
    code = "import sys; print('warning: 3 {'); print('{\"rate\": 2.5}'); [print('{\"rate\": 3}') for _ in sys.stdin]"
    with other_program(code) as other:
        assert script("peer").answer(other) == {"rate": 2.5}
        print("again", file=other.stdin, flush=True)
        other.stdin.close()
        assert script("peer").answer(other) == {"rate": 3}


def test_the_other_programs_end_is_told(script):
    with other_program("print('no module')") as other, pytest.raises(SystemExit, match="ended without an answer"):
        script("peer").answer(other)


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


def test_steps_of_rows_that_shrink_and_that_take_new_sentences(script):
    """Counted by hand: 4 rows; after 1 step two sentences are done, after 2 a third, after 5 the last."""
    refill, steps = script("refill"), np.asarray([1, 1, 2, 5, 3])
    assert refill.shrinking(steps, (4,)) == 4 * 5 + 4 * 3
    assert refill.shrinking(steps, (4, 2, 1)) == (4 + 2 + 1 + 1 + 1) + (1 + 1 + 1)
    assert refill.refilled(steps, 2, every=1) == 2 * (1 + 2 + 3)  # 1 and 1; 2 and 5; 3 and what is left of 5, 3
    assert refill.refilled(steps, 2, every=4) == 2 * (4 + 4 + 3)  # 1 and 1; 2 and 5; 1 and 3


def test_products_of_integers_are_exact_and_all_types_get_a_rate(script, monkeypatch, capsys):
    int8 = script("int8")
    rng = np.random.default_rng(0)
    x, w = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((3, 200), (200, 5)))
    np.testing.assert_array_equal(int8.integers(x, w), x.astype(np.int64) @ w)
    monkeypatch.setattr(int8, "SHAPES", ((4, 8, 16),))
    flops, tick = 2 * 4 * 8 * 16, 2**-30
    monkeypatch.setattr(int8, "LEAST_FLOPS", 3 * flops)  # so three products are a turn, which takes one tick
    monkeypatch.setattr(int8, "time", SimpleNamespace(perf_counter=itertools.count(step=tick).__next__))
    monkeypatch.setattr(sys, "argv", ["int8.py", "--turns=1"])
    int8.main()
    cells = capsys.readouterr().out.splitlines()[-1].split("|")
    assert cells[1].strip() == "4, 8, 16"
    assert [int(cell) for cell in cells[2:5]] == [round(3 * flops / tick / 1e9)] * 3


def test_fairseq_is_adapted_by_factories_and_names(script):
    adapted = script("peer_adapt").adapted
    record = "class Whole:\n    part: PartConfig = PartConfig()\n    other: PartConfig = field(default=PartConfig())\n"
    factories = "class Whole:\n    part: PartConfig = field(default_factory=PartConfig)\n"
    factories += "    other: PartConfig = field(default_factory=PartConfig)\n"
    assert adapted(record) == factories == adapted(factories)
    assert adapted("np.int, np.int64, np.float('inf')") == "int, np.int64, float('inf')"
    assert adapted("    count: int = len()\n") == "    count: int = len()\n"
    default = "        v = FairseqConfig.__dataclass_fields__[k].default\n"
    assert "v.default_factory()" in adapted(default)
    assert adapted(adapted(default)) == adapted(default)
