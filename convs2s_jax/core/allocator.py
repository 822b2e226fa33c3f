"""The C library's memory allocator, set so that a process keeps large blocks that it has freed.

XLA's CPU client allocates the working memory of a program at each call and frees it afterwards. glibc returns blocks
of this size to the operating system at once, which hands out the next one page by page, each filled with zeros. In
training that takes a tenth of the processor time, and more of the clock (docs/performance-log.md).

On hosts of GPUs and TPUs nothing is set: the programs' memory is the device's there, and threads that compile would
wait for each other at the one heap.
"""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
"""Names and numbers of glibc's `malloc.h`."""


def keep_freed_memory() -> bool:
    """Let this process keep what it frees: for programs that train, called once at their start.

    All threads then share one heap, no block has a mapping of its own, and the heap never shrinks. A process holds as
    much memory as it once needed. It works only before JAX starts its backends, whose threads have heaps of their own
    afterwards; so `core.platforms` tells beforehand whether it is of use.

    Returns:
      Whether it is set: False where the C library has no `mallopt`, as on macOS, or refuses.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all([mallopt(M_ARENA_MAX, 1), mallopt(M_MMAP_MAX, 0), mallopt(M_TRIM_THRESHOLD, -1)])
