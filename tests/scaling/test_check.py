"""Updates on virtual devices beside their plan, by the command; and what is said of numbers."""

import dataclasses
import json
import math
from types import SimpleNamespace

import jax
import pytest

from convs2s_jax.commands.convs2s import COMMANDS, console
from convs2s_jax.core.errors import UserError
from convs2s_jax.scaling import plan, tables
from convs2s_jax.scaling.check import Measured, attached_topology
from convs2s_jax.scaling.chips import CHIPS
from tests import tiny

H100 = "NVIDIA H100 80GB HBM3"


@pytest.mark.drill
def test_eight_devices_are_measured_beside_their_plan(tmp_path, capsys):
    """The bytes are those of the plan, and compiling is no part of a step."""
    path, given = tmp_path / "check.json", tiny.config_file(tmp_path, mesh={"data": 4, "fsdp": 2}, training__clip=0.5)
    COMMANDS["scale check"].run(
        ["check", f"--config={given}", "--lengths=16", "--tokens=128", "--steps=3", f"--json={path}"]
    )
    printed, found = capsys.readouterr().out, json.loads(path.read_text())
    assert "mesh data 4, fsdp 2, tensor 1" in printed
    assert "error of the plan" in printed
    by_name = {each["name"].split()[0]: each for each in found["measured"]}
    assert by_name["parameters"]["error"] == 0
    assert abs(by_name["arguments"]["error"]) < 0.01
    step = by_name["step"]
    assert len(step["values"]) == 3
    assert step["planned"] == found["steps"][0]["seconds"]
    assert -0.5 < step["error"] < math.inf
    assert all(each["seconds"] > step["median"] for each in found["programs"])


def test_medians_spreads_and_errors_are_those_of_the_values():
    one = Measured("step", "s", 2.0, (3.0, 1.0, 4.0, 5.0, 2.0))
    assert (one.median, one.error) == (3.0, 0.5)
    assert one.spread == pytest.approx((4.5 - 1.5) / 2 / 3)
    assert Measured("bytes", "B", 8.0, (6.0,)).spread == 0.0
    assert "+50.0 %" in tables.of_check([one], 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plam"], "unknown command 'scale plam'; did you mean 'scale plan'?"),
        (["check", "--config=x", "--steps=1"], "--steps=1: one update has no spread"),
        (["plan", "--config=cldr_en_de"], "--topology is missing"),
        (["plan", "--topology=v5e:4x4"], "--config is missing"),
        (["doctor", "--config.seed=3"], "--config.*: the doctor reads no configuration"),
    ],
)
def test_mistakes_get_a_sentence_and_status_2(arguments, message, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["convs2s", "scale", *arguments])
    with pytest.raises(SystemExit) as ended:
        console()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("action", "flag"), [("plan", "--topology=cpu:1"), ("check", "--devices=1")])
@pytest.mark.parametrize(("name", "why"), [("missing/plan.json", "No such file"), (".", "Is a directory")])
def test_a_file_that_cannot_be_written_is_refused_before_planning(
    action, flag, name, why, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(plan, "make", pytest.fail)
    with pytest.raises(SystemExit) as ended:
        COMMANDS[f"scale {action}"].run([action, flag, "--config=cldr_en_de", f"--json={tmp_path / name}"])
    assert ended.value.code == 2
    assert f"--json={tmp_path / name} cannot be written: {why}" in capsys.readouterr().err


@pytest.mark.parametrize(("limits", "memory"), [((9e9, 8e9), 8e9), ((None, None), CHIPS["h100"].memory)])
def test_memory_is_what_the_runtime_may_use(limits, memory, monkeypatch):
    """A run can be given more or less than the share that JAX reserves by default."""
    found = [SimpleNamespace(process_index=0, device_kind=H100, memory_stats=lambda n=n: n) for n in map(stats, limits)]
    elsewhere = SimpleNamespace(process_index=1, device_kind=H100)  # no process can ask the devices of another
    monkeypatch.setattr(jax, "devices", lambda: [*found, elsewhere])
    monkeypatch.setattr(jax, "device_count", lambda: 3)
    assert attached_topology().chip == dataclasses.replace(CHIPS["h100"], memory=memory)


def stats(limit):
    return limit and {"bytes_limit": limit}


def test_devices_are_those_that_are_attached_and_of_several_processes_all(monkeypatch):
    with pytest.raises(UserError, match=r"^--devices=9: only 8 are attached; use fewer"):
        attached_topology(9)
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    assert len(attached_topology(8).devices) == len(attached_topology().devices) == 8
    with pytest.raises(UserError, match=r"^--devices=4: several processes use all of their 8 devices; omit the flag"):
        attached_topology(4)
