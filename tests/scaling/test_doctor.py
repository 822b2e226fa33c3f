"""What the doctor says of facts, and facts of this process."""

import pytest

from convs2s_jax.commands import scale
from convs2s_jax.scaling import doctor
from tests import tiny

HEALTHY = {
    "clock": 100.0,
    "process": 0,
    "host": "a",
    "versions": {"Python": "3.11.7", "jax": "0.10.2"},
    "devices": {"TPU v5 lite": 4},
    "workdir": {"path": "/runs/a", "free": 5e9, "error": ""},
    "data": {"train": "aa", "valid": "bb"},
    "product_rate": 1e12,
}


def two(**changes):
    """Facts of two processes; the second has changes."""
    return [HEALTHY, {**HEALTHY, "process": 1, "host": "b", **changes}]


def sentences(seen, *, wrong):
    return [each.sentence for each in doctor.findings(seen, 2e9) if each.wrong == wrong]


def test_nothing_is_wrong_with_processes_that_are_alike():
    assert sentences(two(), wrong=True) == []
    told = sentences(two(), wrong=False)
    assert told[0] == "2 process(es) with 8 devices: 8 x TPU v5 lite"
    assert "versions: Python 3.11.7, jax 0.10.2" in told
    assert "workdir: /runs/a, 5.0 GB free" in told
    sent = "an all-reduce over all devices sends 2.00 GB/s from each"
    assert f"{sent}, where one link of a v5e has 45 GB/s in each direction" in told


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"versions": {"Python": "3.11.7", "jax": "0.11.0"}},
            "jax: process 1 has 0.11.0, process 0 0.10.2: install the same",
        ),
        ({"versions": {"Python": "3.11.7"}}, "jax: process 1 has none, process 0 0.10.2: install the same"),
        ({"devices": {"TPU v5 lite": 3}}, "devices: process 1 has 3 x TPU v5 lite, process 0 4 x TPU v5 lite"),
        ({"clock": 103.5}, "clocks are 3.5 s apart: set them by NTP"),
        ({"data": {"train": "aa", "valid": "cc"}}, "valid data: process 1 has cc, process 0 bb: copy the same files"),
        ({"product_rate": 0.5e12}, "process 1 on b computes at 500 GFLOP/s: look for other programs"),
        (
            {"workdir": {"path": "x", "free": 0, "error": "--workdir=x is not one folder"}},
            "process 1: --workdir=x is not one",
        ),
    ],
)
def test_each_difference_is_a_sentence_with_a_way_out(changes, sentence):
    (found,) = sentences(two(**changes), wrong=True)
    assert found.startswith(sentence)


def test_the_command_tells_of_this_process(tmp_path, capsys):
    given, workdir = tiny.config_file(tmp_path, data__cldr={"train": 20, "valid": 4, "test": 4}), tmp_path / "run"
    scale.console(["convs2s scale", "doctor", f"--config={given}", f"--workdir={workdir}"])
    told = capsys.readouterr().out
    assert "1 process(es) with 8 devices: 8 x cpu" in told
    assert f"workdir: {workdir}" in told
    assert "train data: " in told
    assert "an all-reduce over all devices sends" in told
