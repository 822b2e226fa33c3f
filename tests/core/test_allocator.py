"""The allocator that training uses: what is freed is used again, without new pages from the operating system."""

import platform
import subprocess
import sys
import types

import pytest

from convs2s_jax.core import allocator

SCRIPT = """
import ctypes, resource, sys, threading
from convs2s_jax.core.allocator import keep_freed_memory

assert sys.argv[1] == "0" or keep_freed_memory()
c, size = ctypes.CDLL(None), ctypes.c_size_t(64 * 2**20)
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
    assert fetched(False) > 600  # where this fails, glibc keeps them by itself: `core.allocator` can go


@pytest.mark.parametrize(
    ("platforms", "plugin", "device", "expected"),
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
def test_whether_jax_will_compute_on_cpus(platforms, plugin, device, expected, tmp_path, monkeypatch):
    modules = [types.SimpleNamespace(name=plugin)] if plugin else []
    monkeypatch.setattr(allocator.pkgutil, "iter_modules", lambda _: modules)
    monkeypatch.setattr(allocator.importlib.metadata, "entry_points", lambda **_: [])
    monkeypatch.setitem(sys.modules, "jax_plugins", types.SimpleNamespace(__path__=[]))
    if device:
        (tmp_path / device).parent.mkdir(exist_ok=True)
        (tmp_path / device).touch()
    assert allocator.expects_cpu(platforms, tmp_path) is expected


def test_a_machine_without_the_package_of_plugins_has_none(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "jax_plugins", None)  # as if it could not be imported
    assert allocator.expects_cpu(None, tmp_path)
