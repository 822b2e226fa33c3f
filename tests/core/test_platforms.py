"""Whether JAX will compute on CPUs is known before it starts, and why it cannot start is said in one sentence."""

import subprocess
import sys
from pathlib import Path

import pytest

from convs2s_jax.core import platforms


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
