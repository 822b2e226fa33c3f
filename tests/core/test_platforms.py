"""Whether JAX will compute on CPUs is known before it starts, and why it cannot start is said in one sentence."""

import subprocess
import sys
import types
from pathlib import Path

import pytest

from convs2s_jax.commands import train
from convs2s_jax.core import platforms
from convs2s_jax.core.errors import UserError


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
