"""Cache of compiled programs between commands: JAX's persistent compilation cache in the user's cache folder.

The commands turn it on. The library does not, because the importing program should decide.
"""

import contextlib
import os
import platform
import shutil
import warnings
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

MOST = 2**30
"""Size in bytes above which the least recently used programs are deleted."""
FREE = 2**30
"""Minimum free disk space in bytes. With less, nothing is cached, to leave space for checkpoints."""
PROCESSOR = ("vendor_id", "cpu family", "model", "model name", "flags", "CPU implementer", "CPU part", "Features")
"""Lines of /proc/cpuinfo that determine which instructions a compiler may use."""


def keep(environment: Mapping[str, str], folder: Path | None = None) -> Path | None:
    """Cache the programs that this process compiles, and reuse those of earlier processes. Call it before compiling.

    JAX's own settings take precedence: the user's cache folder (JAX_COMPILATION_CACHE_DIR; an empty value turns the
    cache off) and JAX_ENABLE_COMPILATION_CACHE=false. If anything is wrong with the folder or its content, programs are
    compiled without a cache, and no message is printed.

    Args:
      environment: variables of the process.
      folder: cache folder, in place of `folder_of`. Nothing in it is deleted.

    Returns:
      The folder, or None if it is set by the user or if nothing is cached.
    """
    for action in ("reading", "writing"):
        warnings.filterwarnings("ignore", message=f"Error {action} persistent compilation cache entry")
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in environment:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # a start has dozens of small programs
    settings: Any = jax.config  # its attributes are created when JAX starts
    if settings.jax_compilation_cache_dir is not None or not settings.jax_enable_compilation_cache:
        return None
    try:
        whole = folder or folder_of(environment)
        own = whole / processor()
        own.mkdir(mode=0o700, parents=True, exist_ok=True)
        for one in (whole, own):  # code in it is executed, so nobody else may write there
            about = one.stat()
            if about.st_uid != os.getuid() or about.st_mode & 0o022 or not os.access(one, os.W_OK | os.X_OK):
                return None
        if shutil.disk_usage(own).free < FREE:
            return None
        if folder is None:
            shrink(whole, MOST)
    except (OSError, RuntimeError):  # RuntimeError: there is no home folder
        return None
    jax.config.update("jax_compilation_cache_dir", str(own))
    return own


def folder_of(environment: Mapping[str, str]) -> Path:
    """Return our folder in the user's cache folder, following the XDG Base Directory Specification."""
    caches = Path(environment.get("XDG_CACHE_HOME", ""))
    return (caches if caches.is_absolute() else Path.home() / ".cache") / "convs2s_jax"


def processor(about: Path = Path("/proc/cpuinfo")) -> str:
    """Return a name for the processor, because a program may contain instructions that another processor lacks.

    JAX's cache keys do not distinguish processors, and machines may share home folders.
    """
    text = about.read_text(encoding="utf-8", errors="replace") if about.exists() else platform.processor()
    first = text.split("\n\n")[0].splitlines()
    facts = [line for line in first if line.partition(":")[0].strip() in PROCESSOR] or first
    return f"{platform.machine()}-{zlib.crc32(chr(10).join(facts).encode()):08x}"


def shrink(folder: Path, most: int) -> None:
    """If the files in `folder` exceed `most` bytes, delete the least recently used, down to three quarters of it."""
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # another process may delete one
            about = path.stat()
            found += [(max(about.st_atime, about.st_mtime), about.st_size, path)] if path.is_file() else []
    left = sum(size for _, size, _ in found)
    most = most * 3 // 4 if left > most else left
    for _, size, path in sorted(found):
        if left <= most:
            break
        path.unlink(missing_ok=True)
        left -= size
