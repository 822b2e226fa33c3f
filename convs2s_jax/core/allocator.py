"""Configure the C library's allocator so that a process keeps large freed blocks.

XLA's CPU client allocates the working memory of a program at each call and frees it afterwards. glibc returns blocks
of this size to the operating system at once. The operating system then hands out the next block page by page, filled
with zeros. In training this takes a tenth of the processor time, and more of the wall-clock time
(docs/performance-log.md).

On GPU and TPU hosts nothing is changed. There, programs use device memory, and compiling threads would contend for the
single heap.
"""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_MAX, M_ARENA_MAX = -1, -4, -8
"""Constants from glibc's `malloc.h`."""


def keep_freed_memory() -> bool:
    """Make this process keep the memory it frees. Call it once at the start of a training program.

    All threads then share one heap, no block has its own mapping, and the heap never shrinks, so a process keeps its
    peak memory. Call it before JAX starts its backends, whose threads get their own heaps otherwise. `core.platforms`
    predicts whether it is useful.

    Returns:
      Whether it took effect: False if the C library has no `mallopt`, as on macOS, or rejects the setting.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return all([mallopt(M_ARENA_MAX, 1), mallopt(M_MMAP_MAX, 0), mallopt(M_TRIM_THRESHOLD, -1)])
