"""What the doctor says of facts, and facts of this process."""

import pytest

from convs2s_jax.scaling import doctor
from tests import processes

HEALTHY = {
    "clock": 100.0,
    "process": 0,
    "host": "a",
    "versions": {"Python": "3.11.7", "jax": "0.10.2"},
    "devices": "4 x TPU v5 lite",
    "product_rate": 1e12,
}


def two(**changes):
    """Facts of two processes; the second has changes."""
    return [HEALTHY, {**HEALTHY, "process": 1, "host": "b", **changes}]


def sentences(seen, *, wrong):
    return [each.sentence for each in doctor.findings(seen) if each.wrong == wrong]


def test_nothing_is_wrong_with_processes_that_are_alike():
    assert sentences(two(), wrong=True) == []
    told = sentences(two(), wrong=False)
    assert told[0] == "process 0 on a: 4 x TPU v5 lite"
    assert "versions: Python 3.11.7, jax 0.10.2" in told


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"versions": {"Python": "3.11.7", "jax": "0.11.0"}},
            "jax: process 1 has 0.11.0, process 0 has 0.10.2; install the same version",
        ),
        ({"devices": "3 x TPU v5 lite"}, "devices: process 1 has 3 x TPU v5 lite, process 0 has 4 x TPU v5 lite"),
        ({"clock": 103.5}, "clocks are 3.5 s apart; synchronise them with NTP"),
        ({"product_rate": 0.5e12}, "process 1 on b computes at 500 GFLOP/s; look for other programs"),
    ],
)
def test_each_difference_is_a_sentence_with_a_way_out(changes, sentence):
    (found,) = sentences(two(**changes), wrong=True)
    assert found.startswith(sentence)


def test_the_command_tells_of_all_processes():
    """Status 2 means that one computes slower here."""
    (status, told), (other, _) = processes.scaled("doctor", [], [])
    assert status == other, told
    assert status == (2 if "WRONG: " in told else 0)
    assert "process 1 on " in told
    assert "an all-reduce over 2 devices sends " in told
