"""Sets of flags for XLA: what the user has set stays, and XLA knows those that are added."""

import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from convs2s_jax.core import xla_flags
from convs2s_jax.training.run.processes import peers
from tests import tiny
from tests.helpers import drills_but
from tests.processes import called

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


@pytest.mark.parametrize(("name", "variable"), [("tpu", "LIBTPU_INIT_ARGS"), ("gpu", "XLA_FLAGS")])
def test_a_set_is_added_to_its_variable_and_the_users_flags_stay(name, variable):
    flags = list(xla_flags.SETS[name].flags)
    mine = f"--{flags[1]}=mine  -{flags[0]} --xla_other=1"
    environment = {variable: mine, "HOME": "/home"}
    xla_flags.add(name, environment)
    words = environment[variable].split()
    assert words[:3] == mine.split()
    assert [word.lstrip("-").partition("=")[0] for word in words[3:]] == flags[2:]
    again = dict(environment)
    xla_flags.add(name, again)
    assert again == environment
    assert set(environment) == {variable, "HOME"}


def test_none_adds_nothing():
    environment: dict[str, str] = {}
    xla_flags.add("none", environment)
    assert environment == {}


@pytest.mark.parametrize("name", drills_but(["tpu", "gpu"], ["tpu"]))
def test_a_process_on_a_cpu_does_not_mind(name):
    """XLA ends a process with an unknown flag in XLA_FLAGS at its first use of a device."""
    program = (
        "import os, sys; from convs2s_jax.core import xla_flags; import jax; "
        "xla_flags.add(sys.argv[1], os.environ); print(int(jax.numpy.ones(3).sum()))"
    )
    variables = {key: value for key, value in os.environ.items() if key not in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")}
    command = [sys.executable, "-c", program, name]
    ended = subprocess.run(command, cwd=tiny.ROOT, env=variables, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "3\n"), ended.stderr


@pytest.mark.parametrize(
    ("name", "more"),
    [("train", ["--workdir=run"]), ("scale_check", ["--devices=1"]), ("scale_doctor", [])],
    ids=["train", "check", "doctor"],
)
def test_commands_set_them_before_they_use_a_device(name, more, tmp_path, monkeypatch):
    """JAX has begun in this process, so the variable alone is looked at."""
    command = importlib.import_module(f"convs2s_jax.commands.{name}")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_mine=1")
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(peers, "join", lambda _: seen.append(os.environ["LIBTPU_INIT_ARGS"]) or sys.exit(0))
    called(command.console, name, f"--config={tiny.config_file(tmp_path)}", *more, "--xla_flags=tpu")
    assert re.match("--xla_mine=1 --xla_tpu_enable_async_collective_fusion=true ", seen[0])


def test_flags_are_described_as_they_stand_before_a_command():
    environment = {"XLA_FLAGS": "--xla_a=1 --xla_b=2", "LIBTPU_INIT_ARGS": "--xla_c=1", "HOME": "/home"}
    text = xla_flags.describe(environment)
    assert shlex.split(text) == ["XLA_FLAGS=--xla_a=1 --xla_b=2", "LIBTPU_INIT_ARGS=--xla_c=1"]
    assert xla_flags.describe({"XLA_FLAGS": " ", "HOME": "/home"}) == ""


def test_the_page_lists_each_flag():
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"`{flag}`" in text for flags in xla_flags.SETS.values() for flag in flags.flags)
