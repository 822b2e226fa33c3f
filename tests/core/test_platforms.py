"""Whether JAX will compute on CPUs is known before it starts, and why it cannot start is said in one sentence."""

import os
import platform
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from convs2s_jax.commands import train
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


@pytest.mark.parametrize(
    "text",
    [
        "Unable",
        "Unable to initialize backend 'cuda': DEADLINE_EXCEEDED: Getting local topologies timed out",
        "Unable to initialize backend 'tpu': UNAVAILABLE: the TPU is already in use",
    ],
)
def test_other_errors_are_not_of_an_absent_platform(text):
    """Another process that is late or lost, among others."""
    assert platforms.unavailable(RuntimeError(text), None) is None


def test_without_a_choice_of_platforms_the_advice_is_to_choose_one():
    advice = " (you may need to uninstall the failing plugin package, or set JAX_PLATFORMS=cpu to skip this backend.)"
    error = RuntimeError(f"Unable to initialize backend 'my-gpu': FAILED: No visible GPU devices.{advice}")
    expected = "JAX cannot use my-gpu on this machine (FAILED: No visible GPU devices); set JAX_PLATFORMS=cpu"
    assert platforms.unavailable(error, None) == expected


SCRIPT = """
import ctypes, resource, sys, threading
from convs2s_jax.core.platforms import keep_freed_memory

c, size = ctypes.CDLL(None), ctypes.c_size_t(64 * 2**20)
c.prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: faults of huge pages would count as small ones
assert sys.argv[1] == "0" or keep_freed_memory()
c.malloc.restype = ctypes.c_void_p

def fill():
    for _ in range(10):
        block = ctypes.c_void_p(c.malloc(size))
        c.memset(block, 1, size)
        c.free(block)

fill()  # the heap grows to what is needed
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
thread = threading.Thread(target=fill)
thread.start()
thread.join()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) * resource.getpagesize() / 2**20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are glibc's")
def test_freed_blocks_are_used_again_by_every_thread():
    def fetched(kept):
        """MiB of new pages for ten blocks of 64 MiB, one after the other, in a second thread."""
        return float(subprocess.check_output([sys.executable, "-c", SCRIPT, str(int(kept))]))

    assert fetched(True) < 10
    assert fetched(False) > 600  # where this fails, glibc keeps them by itself: `keep_freed_memory` can go


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


def test_flags_are_described_as_they_stand_before_a_command():
    environment = {"XLA_FLAGS": "--xla_a=1 --xla_b=2", "LIBTPU_INIT_ARGS": "--xla_c=1", "HOME": "/home"}
    text = platforms.describe_flags(environment)
    assert shlex.split(text) == ["XLA_FLAGS=--xla_a=1 --xla_b=2", "LIBTPU_INIT_ARGS=--xla_c=1"]
    assert platforms.describe_flags({"XLA_FLAGS": " ", "HOME": "/home"}) == ""


def test_the_page_lists_each_flag():
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"`{flag.partition('=')[0]}`" in text for _, flags in platforms.SETS.values() for flag in flags)


def test_training_sets_them_before_it_uses_a_device(tmp_path, monkeypatch):
    """JAX has begun in this process, so the variable alone is looked at."""
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_mine=1")
    seen = []
    monkeypatch.setattr(joining, "join", lambda _: seen.append(os.environ["LIBTPU_INIT_ARGS"]) or sys.exit(0))
    called(
        train.console, "train", f"--config={tiny.config_file(tmp_path)}", f"--workdir={tmp_path}/a", "--xla_flags=tpu"
    )
    assert seen[0].startswith("--xla_mine=1 --xla_tpu_enable_async_collective_fusion=true ")
