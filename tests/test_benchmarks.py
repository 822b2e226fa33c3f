"""The scripts of benchmarks/ that nobody runs daily: the time of a start, the accelerator's one call."""

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


def test_the_functions_that_the_time_of_a_start_is_attributed_to_exist(script):
    start = script("start")
    for place in (place for functions in start.WRAPPED.values() for place in functions):
        module, _, function = place.rpartition(".")
        assert callable(getattr(importlib.import_module(module), function, None)), place


@pytest.mark.drill
def test_the_accelerators_call_measures_every_part(tmp_path):
    command = [sys.executable, str(FOLDER / "accelerator.py"), "--small", "--minutes=1"]
    output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert not [one for one in found if "error" in one]
    assert {one["part"] for one in found} == {"rates", "training", "shapes", "decoding", "int8", "convolutions"}
    shares = [one["share of the product"] for one in found if "share of the product" in one]
    assert all(float(value) > 0 for share in shares for value in share.split(" / "))


def test_the_accelerators_call_is_refused_without_one(script, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["accelerator.py"])
    with pytest.raises(SystemExit) as ended:
        script("accelerator").main()
    assert ended.value.code == 2
    assert "JAX sees no accelerator" in capsys.readouterr().err
