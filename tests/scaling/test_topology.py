"""Names of devices to plan for, and what is refused."""

import importlib.util
import re
from types import SimpleNamespace

import jax
import pytest

from convs2s_jax.core.errors import UserError
from convs2s_jax.scaling import topology


@pytest.mark.parametrize(
    ("name", "slices", "message"),
    [
        ("v5:4x4", 1, "the chip is 'v5'.*did you mean 'v5"),
        ("v5e:4x4x4", 1, "a v5e slice has 2 axes, as in v5e:4x4"),
        ("v5p:4", 1, "a v5p slice has 3 axes"),
        ("v5e:", 1, "a v5e slice has 2 axes"),
        ("h100:", 1, "write h100:NUMBER of devices, as in h100:8"),
        ("h100:0", 1, "write h100:NUMBER"),
        ("h100:2x4", 1, "write h100:NUMBER"),
        ("cpu:\N{SUPERSCRIPT TWO}", 1, "write cpu:NUMBER"),
        ("h100:8", 2, "only TPUs have slices; use the total number of devices, as in h100:16$"),
        ("a100:12", 1, "a machine has 8 GPUs; use fewer, or a multiple"),
        ("v5e:4x4", 0, "--slices=0: use 1 or more"),
        (
            "cpu:2049",
            1,
            "^2049 virtual devices are more than XLA runs programs on: use 2048 or fewer, or plan for TPUs",
        ),
        ("cpu:2048", 1, "planned on 2048 virtual devices, but this process has 8: set XLA_FLAGS"),
    ],
)
def test_what_is_no_topology_gets_a_sentence(name, slices, message):
    with pytest.raises(UserError, match=message):
        topology.named(name, slices=slices)


@pytest.mark.parametrize(
    ("name", "said", "message"),
    [
        ("v5e:4x4", "no such shape\nand more", r"libtpu refuses it \(no such shape\); use a size from https"),
        (
            "h100:8",
            "no such field\nand more",
            r"plugin refuses it \(no such field\); .* the version of pip install '\.\[plan-gpu\]'",
        ),
        ("v5e:4x4", None, r"libtpu is not installed.*pip install '\.\[plan\]'"),
        ("h100:8", None, r"plugin is not installed.*pip install '\.\[plan-gpu\]'"),
    ],
)
def test_what_a_compiler_refuses_is_told_in_a_sentence(name, said, message, monkeypatch):
    def refuse(**_):
        raise RuntimeError(said)

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: said)
    monkeypatch.setattr(topology.topologies, "get_topology_desc", refuse)
    with pytest.raises(UserError, match=f"^--topology={name}: .*{message}"):
        topology.named(name)


@pytest.mark.parametrize(
    ("name", "shape"), [("h100:1", "1x1x1"), ("a100:4", "1x1x4"), ("h200:8", "1x1x8"), ("h100:32", "4x1x8")]
)
def test_gpus_are_described_to_their_compiler_by_machines_of_eight(name, shape, monkeypatch):
    asked = {}

    def described(**given):
        asked.update(given)
        return SimpleNamespace(devices=[SimpleNamespace(platform="gpu", coords=[0, 0, i]) for i in range(40)])

    monkeypatch.setattr(importlib.util, "find_spec", lambda _: True)
    monkeypatch.setattr(topology.topologies, "get_topology_desc", described)
    found = topology.named(name)
    assert (asked["platform"], asked["topology"]) == ("cuda", shape)
    assert found.places()[:9] == [(0, ())] * 8 + [(1, ())]  # a switch has no coordinates
    figures = dict(re.findall(r"(\w+): ([0-9.]+)", asked["target_config"]))
    chip = found.chip
    assert float(figures["memory_bandwidth"]) == chip.memory_bandwidth
    assert float(figures["device_memory_size"]) == pytest.approx(chip.memory / 0.75)


def test_devices_that_are_in_use_are_left_as_they_are(monkeypatch):
    """Where no flag of XLA has made them, more are asked for; JAX refuses that once it uses its devices."""
    before = jax.devices("cpu")
    monkeypatch.delenv("XLA_FLAGS")
    topology.reserve(len(before) + 1)
    assert jax.devices("cpu") == before
