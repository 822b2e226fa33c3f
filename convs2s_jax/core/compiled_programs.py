"""Compiled programs that are kept on disk between commands: JAX's persistent compilation cache in the user's folder.

The commands turn it on. The library does not: there it belongs to the program that imports it.
"""

import contextlib
import os
import platform
import shutil
import stat
import warnings
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

MOST = 2**30
"""Bytes above which the programs that have not been used for the longest time are deleted."""
FREE = 2**30
"""Bytes that have to be free on the disk; with fewer nothing is kept, so that checkpoints get the room."""
PROCESSOR = ("vendor_id", "cpu family", "model", "model name", "flags", "CPU implementer", "CPU part", "Features")
"""Lines of /proc/cpuinfo that say which instructions a compiler may use."""


def keep(environment: Mapping[str, str], folder: Path | None = None) -> Path | None:
    """Keep the programs that this process compiles, and use those that earlier ones kept. Call it before the first one.

    JAX's own settings have priority: a folder of the user's choice (JAX_COMPILATION_CACHE_DIR; an empty one turns the
    cache off) and JAX_ENABLE_COMPILATION_CACHE=false. Whatever is wrong with the folder or its content, programs are
    compiled as if there was no cache, and nothing is said.

    Args:
      environment: variables of the process.
      folder: where to keep them, in place of `folder_of`; of this one nothing is deleted.

    Returns:
      The folder; None if it is not ours, or if nothing is kept.
    """
    for action in ("reading", "writing"):
        warnings.filterwarnings("ignore", message=f"Error {action} persistent compilation cache entry")
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in environment:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)  # a start has dozens of small programs
    settings: Any = jax.config  # whose attributes JAX makes when it starts
    if settings.jax_compilation_cache_dir is not None or not settings.jax_enable_compilation_cache:
        return None
    try:
        whole = folder or folder_of(environment)
        own = whole / processor()
        whole.mkdir(mode=0o700, parents=True, exist_ok=True)  # whoever writes into it has his code run
        own.mkdir(mode=0o700, exist_ok=True)
        if not (ours(whole) and ours(own)) or shutil.disk_usage(own).free < FREE:
            return None
        if folder is None:
            shrink(whole, MOST)
    except (OSError, RuntimeError):  # RuntimeError: there is no home folder
        return None
    jax.config.update("jax_compilation_cache_dir", str(own))
    return own


def folder_of(environment: Mapping[str, str]) -> Path:
    """Our folder in the user's folder of caches, as the XDG Base Directory Specification names it."""
    caches = Path(environment.get("XDG_CACHE_HOME", ""))
    return (caches if caches.is_absolute() else Path.home() / ".cache") / "convs2s_jax"


def ours(folder: Path) -> bool:
    """Whether this user, and nobody else, may write into the folder."""
    about = folder.stat()
    return about.st_uid == os.getuid() and not about.st_mode & 0o022 and os.access(folder, os.W_OK | os.X_OK)


def processor(described: str | None = None) -> str:
    """A name for the processor, since programs for one may hold instructions that another lacks.

    JAX's key of a program does not tell processors apart, and home folders are shared by machines.

    Args:
      described: the content of /proc/cpuinfo; None for this machine's.
    """
    if described is None:
        path = Path("/proc/cpuinfo")
        described = path.read_text(encoding="utf-8", errors="replace") if path.exists() else platform.processor()
    first = described.split("\n\n")[0].splitlines()
    facts = [line for line in first if line.partition(":")[0].strip() in PROCESSOR] or first
    return f"{platform.machine()}-{zlib.crc32(chr(10).join(facts).encode()):08x}"


def shrink(folder: Path, most: int) -> None:
    """If the files in `folder` have more than `most` bytes, delete those used longest ago, down to three quarters."""
    found = []
    for path in folder.rglob("*"):
        with contextlib.suppress(FileNotFoundError):  # another process may delete one
            if stat.S_ISREG((about := path.stat()).st_mode):
                found.append((path, about))
    total = sum(about.st_size for _, about in found)
    if total <= most:
        return
    for path, about in sorted(found, key=lambda each: max(each[1].st_atime, each[1].st_mtime)):
        if total <= most * 3 // 4:
            break
        path.unlink(missing_ok=True)
        total -= about.st_size
