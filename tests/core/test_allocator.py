"""The allocator that training uses: what is freed is used again, without new pages from the operating system."""

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, resource, sys, threading
from convs2s_jax.core.allocator import keep_freed_memory

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
    assert fetched(False) > 600  # where this fails, glibc keeps them by itself: `core.allocator` can go
