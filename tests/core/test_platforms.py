"""Whether JAX will compute on CPUs is known before it starts, and why it cannot start is said in one sentence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from convs2s_jax.commands.convs2s import COMMANDS
from convs2s_jax.core import platforms
from convs2s_jax.training.run.processes import joining
from tests import tiny
from tests.processes import called


@pytest.mark.parametrize(
    ("chosen", "device", "expected"),
    [
        (None, None, True),
        ("", "nvidia0", False),
        (None, "nvidiactl", True),
        (None, "dxg", False),
        (None, "kfd", False),
        (None, "accel0", False),
        (None, "vfio/3", False),
        (None, "vfio/vfio", True),  # there on any machine with the module
        ("cpu", "nvidia0", True),
        ("cpu,cuda", None, True),
        ("cuda,cpu", None, False),
    ],
)
def test_whether_jax_will_compute_on_cpus(chosen, device, expected, tmp_path):
    if device:
        (tmp_path / device).parent.mkdir(exist_ok=True)
        (tmp_path / device).touch()
    assert platforms.expects_cpu(chosen, tmp_path) is expected


START = """
import os, jax
from convs2s_jax.core.guard import user_message
for platforms in ("bogus", "cuda"):
    os.environ["JAX_PLATFORMS"] = platforms
    jax.config.update("jax_platforms", platforms)
    try:
        jax.devices()
    except Exception as error:
        print(user_message(error))
"""


@pytest.mark.skipif(any(Path("/dev").glob("nvidia[0-9]*")), reason="this machine has a GPU")
def test_a_platform_that_jax_cannot_start_ends_in_one_sentence():
    """The errors are JAX's own; for GPUs it raises an AssertionError without a message."""
    ended = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=True)
    bogus, cuda = ended.stdout.splitlines()
    assert bogus.startswith("JAX_PLATFORMS=bogus: JAX cannot use bogus on this machine (Backend 'bogus' is not in the ")
    remedy = "unset it or set JAX_PLATFORMS=cpu"
    assert bogus.endswith(f"); {remedy}")
    assert cuda == f"JAX_PLATFORMS=cuda: JAX cannot use cuda on this machine (there is no such device); {remedy}"


def test_without_a_choice_of_platforms_the_advice_is_to_choose_one():
    advice = " (you may need to uninstall the failing plugin package, or set JAX_PLATFORMS=cpu to skip this backend.)"
    error = RuntimeError(f"Unable to initialize backend 'my-gpu': FAILED: No visible GPU devices.{advice}")
    expected = "JAX cannot use my-gpu on this machine (FAILED: No visible GPU devices); set JAX_PLATFORMS=cpu"
    assert platforms.unavailable(error, None) == expected


PAGE = Path(__file__).parents[2] / "docs" / "training.md"


@pytest.mark.parametrize(("name", "variable"), [("tpu", "LIBTPU_INIT_ARGS"), ("gpu", "XLA_FLAGS")])
def test_a_set_is_added_to_its_variable_and_the_users_flags_stay(name, variable):
    flags = [flag.partition("=")[0] for flag in platforms.SETS[name][1]]
    mine = f"--{flags[1]}=mine  -{flags[0]} --xla_other=1"
    environment = {variable: mine, "HOME": "/home"}
    platforms.add_flags(name, environment)
    words = environment[variable].split()
    assert words[:3] == mine.split()
    assert [word.lstrip("-").partition("=")[0] for word in words[3:]] == flags[2:]
    assert environment["HOME"] == "/home"


def test_the_page_lists_each_flag():
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"`{flag.partition('=')[0]}`" in text for _, flags in platforms.SETS.values() for flag in flags)


def test_training_sets_them_before_it_uses_a_device(tmp_path, monkeypatch):
    """JAX has begun in this process, so the variable alone is looked at."""
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_mine=1")
    seen = []
    monkeypatch.setattr(joining, "join", lambda _: seen.append(os.environ["LIBTPU_INIT_ARGS"]) or sys.exit(0))
    arguments = [f"--config={tiny.config_file(tmp_path)}", f"--workdir={tmp_path}/a", "--xla_flags=tpu"]
    called(COMMANDS["train"].run, "train", *arguments)
    assert seen[0].startswith("--xla_mine=1 --xla_tpu_enable_async_collective_fusion=true ")
