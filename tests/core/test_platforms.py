"""Whether JAX will compute on CPUs is known before it starts, and why it cannot start is said in one sentence."""

import importlib
import os
import platform
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path

import pytest

from convs2s_jax.commands import train
from convs2s_jax.core import command_line, platforms
from convs2s_jax.core.errors import UserError
from convs2s_jax.training.run.processes import joining
from tests import tiny
from tests.helpers import drills_but
from tests.processes import called


def add(device):
    """Make a device file."""
    device.parent.mkdir(exist_ok=True)
    device.touch()


@pytest.mark.parametrize(
    ("chosen", "plugin", "device", "expected"),
    [
        (None, None, None, True),
        ("", None, None, True),
        (None, "xla_cuda13", "nvidia0", False),
        (None, "xla_cuda13", "dxg", False),
        (None, "xla_rocm7", "kfd", False),
        (None, None, "nvidia0", True),
        (None, "xla_cuda13", None, True),
        (None, "xla_cuda13", "nvidiactl", True),
        (None, "another", None, False),
        (None, None, "accel0", False),
        (None, None, "vfio/3", False),
        (None, None, "vfio/vfio", True),  # there on any machine with the module
        ("cpu", "xla_cuda13", "nvidia0", True),
        ("cuda,cpu", None, None, False),
    ],
)
def test_whether_jax_will_compute_on_cpus(chosen, plugin, device, expected, tmp_path, monkeypatch):
    modules = [types.SimpleNamespace(name=plugin)] if plugin else []
    monkeypatch.setattr(platforms.pkgutil, "iter_modules", lambda _: modules)
    monkeypatch.setattr("importlib.metadata.entry_points", lambda **_: [])
    monkeypatch.setitem(sys.modules, "jax_plugins", types.SimpleNamespace(__path__=[]))
    monkeypatch.setattr(platforms.importlib.util, "find_spec", lambda name: name)
    if device:
        add(tmp_path / device)
    assert platforms.expects_cpu(chosen, tmp_path) is expected


def test_a_machine_without_the_package_of_plugins_has_none(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax_plugins", None)  # as if it could not be imported
    assert platforms.expects_cpu(None, tmp_path)


def test_device_files_of_tpus_without_their_library_are_of_something_else(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax_plugins", None)
    monkeypatch.setattr(platforms.importlib.util, "find_spec", lambda _: None)
    add(tmp_path / "vfio" / "3")
    assert platforms.expects_cpu(None, tmp_path)


@pytest.mark.parametrize(
    ("chosen", "device", "expected"),
    [
        (None, None, True),
        (None, "vfio/vfio", True),
        ("", "nvidia0", False),
        (None, "accel0", False),
        ("cpu", "nvidia0", True),
        ("cuda", None, False),
        ("cpu,cuda", None, False),
    ],
)
def test_accelerators_are_ruled_out_by_the_choice_of_platforms_or_without_device_files(
    chosen, device, expected, tmp_path
):
    if device:
        add(tmp_path / device)
    assert platforms.rules_out_accelerators(chosen, tmp_path) is expected


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
        "then: Unable to initialize backend 'tpu': Failed to open libtpu.so",
        "Unable to initialize backend 'cuda': DEADLINE_EXCEEDED: Getting local topologies timed out",
        "Unable to initialize backend 'tpu': UNAVAILABLE: the TPU is already in use",
    ],
)
def test_other_errors_are_not_of_an_absent_platform(text):
    """Another process that is late or lost, among others."""
    assert platforms.unavailable(RuntimeError(text), None) is None


def test_an_assertion_elsewhere_is_not_of_a_platform():
    with pytest.raises(ZeroDivisionError) as caught:
        1 / 0  # noqa: B018
    error = AssertionError().with_traceback(caught.value.__traceback__)
    assert platforms.unavailable(error, "cuda") is None


def test_without_a_choice_of_platforms_the_advice_is_to_choose_one():
    advice = " (you may need to uninstall the failing plugin package, or set JAX_PLATFORMS=cpu to skip this backend.)"
    error = RuntimeError(f"Unable to initialize backend 'my-gpu': FAILED: No visible GPU devices.{advice}")
    expected = "JAX cannot use my-gpu on this machine (FAILED: No visible GPU devices); set JAX_PLATFORMS=cpu"
    assert platforms.unavailable(error, None) == expected


@pytest.mark.parametrize("cpu", [True, False])
def test_training_has_one_heap_on_cpus_only(cpu, tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr(train, "expects_cpu", lambda _: cpu)
    monkeypatch.setattr(train, "keep_freed_memory", lambda: called.append("one heap"))
    monkeypatch.chdir(tmp_path)
    data = {"dir": "none", "src": "de", "tgt": "en"}
    (tmp_path / "config.py").write_text(f"def get_config(): return {{'data': {data}}}")
    with pytest.raises(UserError, match=r"^data\.dir is 'none'"):
        train.main({"config": "config.py", "workdir": "run"}, [])
    assert called == ["one heap"] * cpu


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
    flags = list(platforms.SETS[name].flags)
    mine = f"--{flags[1]}=mine  -{flags[0]} --xla_other=1"
    environment = {variable: mine, "HOME": "/home"}
    platforms.add_flags(name, environment)
    words = environment[variable].split()
    assert words[:3] == mine.split()
    assert [word.lstrip("-").partition("=")[0] for word in words[3:]] == flags[2:]
    again = dict(environment)
    platforms.add_flags(name, again)
    assert again == environment
    assert set(environment) == {variable, "HOME"}


def test_none_adds_nothing():
    environment: dict[str, str] = {}
    platforms.add_flags("none", environment)
    assert environment == {}


@pytest.mark.parametrize("name", drills_but(["tpu", "gpu"], ["tpu"]))
def test_a_process_on_a_cpu_does_not_mind(name):
    """XLA ends a process with an unknown flag in XLA_FLAGS at its first use of a device."""
    program = (
        "import os, sys; from convs2s_jax.core import platforms; import jax; "
        "platforms.add_flags(sys.argv[1], os.environ); print(int(jax.numpy.ones(3).sum()))"
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
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_mine=1")
    monkeypatch.chdir(tmp_path)
    seen = []
    monkeypatch.setattr(joining, "join", lambda _: seen.append(os.environ["LIBTPU_INIT_ARGS"]) or sys.exit(0))
    command = importlib.import_module(f"convs2s_jax.commands.{name}").COMMAND
    called(
        lambda given: command_line.run(command, given),
        name,
        f"--config={tiny.config_file(tmp_path)}",
        *more,
        "--xla_flags=tpu",
    )
    assert re.match("--xla_mine=1 --xla_tpu_enable_async_collective_fusion=true ", seen[0])


def test_flags_are_described_as_they_stand_before_a_command():
    environment = {"XLA_FLAGS": "--xla_a=1 --xla_b=2", "LIBTPU_INIT_ARGS": "--xla_c=1", "HOME": "/home"}
    text = platforms.describe_flags(environment)
    assert shlex.split(text) == ["XLA_FLAGS=--xla_a=1 --xla_b=2", "LIBTPU_INIT_ARGS=--xla_c=1"]
    assert platforms.describe_flags({"XLA_FLAGS": " ", "HOME": "/home"}) == ""


def test_the_page_lists_each_flag():
    text = PAGE.read_text(encoding="utf-8")
    assert all(f"`{flag}`" in text for flags in platforms.SETS.values() for flag in flags.flags)
