"""Blocks of code of the documentation, and how its commands are run as they stand with less of everything."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests import shorter
from tests.processes import environment, free_port
from tests.tiny import ROOT

PAGES = tuple(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "launch/README.md"))
PAGES += (ROOT / "benchmarks" / "peer.md", *sorted((ROOT / "docs").rglob("*.md")))
FENCE = re.compile(r"^```([\w-]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CONFIG = re.compile(r"--config=(?:configs/)?(\w+)(?:\.py)?(?=\s)")
LIMIT = 1200
"""Seconds that a page's commands may take on a busy machine."""
COMMANDS = ("", "sh")
"""Languages of blocks that hold commands; what they print is marked as text."""
OTHERS = ("text", "python", "json", "math")


class Block(NamedTuple):
    """A block of code.

    Attributes:
      language: what follows its fence, or "".
      text: its lines.
    """

    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    return [Block(*found) for found in FENCE.findall(page.read_text(encoding="utf-8"))]


def commands(page: Path) -> list[str]:
    """The commands of a page, in order; each ends with its line end."""
    return [one for block in blocks(page) if block.language in COMMANDS for one in statements(block.text)]


def statements(text: str) -> Iterator[str]:
    """Commands of a block: lines, joined where a line goes on, in a loop, and up to the end of a text in place."""
    whole, end = "", None
    for line in text.splitlines(keepends=True):
        whole += line
        if end is None and (found := re.search(r"<<'(\w+)'|^(for) ", line)):
            end = found[1] or "done"
        elif end and re.match(rf"{end}\b", line):
            end = None
        if end is None and not line.endswith(("\\\n", "|\n")):
            yield whole
            whole = ""
    if whole:
        raise ValueError(f"a command has no end: {whole}")


def reason(command: str) -> str | None:
    """Why a command is not run; None for one that is."""
    return next((why for part, why in shorter.NOT_RUN.items() if part in command), None)


def script(page: Path) -> str:
    """The commands of a page that are run, as one shell script."""
    return "".join(one for one in commands(page) if reason(one) is None)


def name_of(page: Path) -> str:
    """A page as the tables name it."""
    return str(page.relative_to(ROOT))


def with_commands() -> list[str]:
    """Names of the pages of which something is run."""
    return [name_of(page) for page in PAGES if script(page).strip()]


def shortened(page: Path) -> str:
    """A page's script with less of everything.

    Raises:
      ValueError: the page has changed, so that something would not be shortened.
    """
    text = script(page)
    for long, short in shorter.SHORTER.get(name_of(page), {}).items():
        if long not in text:
            raise ValueError(f"{page} has no '{long}' any more: SHORTER of tests/shorter.py makes it '{short}'")
        text = text.replace(long, short)
    if name_of(page) in shorter.FROM_NOTHING:
        return text
    text = re.sub(r"^(?=python decode\.py)", "< lines.en ", text, flags=re.MULTILINE)  # what is typed into it
    return with_less(text)


def with_less(text: str) -> str:
    """A script in which each configuration is followed by what makes its run small.

    Raises:
      ValueError: it is not known how this configuration's run is made small.
    """
    for name in CONFIG.findall(text):
        if name not in shorter.LESS:
            raise ValueError(f"--config={name}: give it a line in LESS of tests/shorter.py")
    return CONFIG.sub(lambda found: found[0] + shorter.LESS[found[1]], text)


def run(page: Path, folder: Path, prepared: Path) -> subprocess.CompletedProcess:
    """Run a page's script in an empty folder, with less of everything; what it started ends with it.

    Args:
      page: whose commands are run, all but those of `shorter.NOT_RUN`.
      folder: where; gets a copy of `prepared` unless the page is one of `shorter.FROM_NOTHING`.
      prepared: what `prepare` has made.
    """
    text = shortened(page)
    for port in ("8080", "12355"):
        text = text.replace(port, str(free_port()))
    if name_of(page) not in shorter.FROM_NOTHING:
        shutil.copytree(prepared, folder, symlinks=True, dirs_exist_ok=True)
        text = f"{shorter.BEFORE.get(name_of(page), '')}\n{text}"
    return shell(text, folder, shorter.DEVICES.get(name_of(page)))


def prepare(folder: Path) -> None:
    """What pages of the reference take for granted: a run of `make demo`, small, and files of text."""
    done = shell(with_less(shorter.PREPARED), folder)
    assert done.returncode == 0, done.stdout + done.stderr


def shell(text: str, folder: Path, devices: int | None = None) -> subprocess.CompletedProcess:
    """Run a script in a folder on this checkout's package."""
    for name in ("launch", "configs", "benchmarks", "train.py", "decode.py"):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(ROOT / name)
    head = "set -eo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n"
    known = environment(devices or 1)
    if devices is None:  # a command may ask for virtual devices itself
        known["XLA_FLAGS"] = re.sub(r"--xla_force_host_platform_device_count=\d+", "", known["XLA_FLAGS"])
    path = f"{Path(sys.executable).parent}{os.pathsep}{known['PATH']}"
    known |= {"PYTHONPATH": str(ROOT), "PATH": path, "JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(folder / "cache")}
    return subprocess.run(
        ["bash", "-xc", head + text],
        cwd=folder,
        env=known,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


if __name__ == "__main__":
    print((shortened if "--shortened" in sys.argv else script)(ROOT / sys.argv[1]), end="")  # noqa: T201
