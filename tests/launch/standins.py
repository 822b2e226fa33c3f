"""Stand-ins for the programs of a cluster: first on PATH, they write down what they are called with."""

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.tiny import ROOT

LAUNCH = ROOT / "launch"
RECORD = """#!/usr/bin/env bash
{{ printf '%s' {name}; printf '\\t%s' "$@"; echo; }} >>{log}
{body}
"""


class StandIns:
    """Programs that write each call into one file."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log = folder / "bin", folder / "calls"
        self.folder.mkdir()

    def add(self, name: str, body: str = "") -> None:
        """A program that writes down its call, and then runs `body` in bash."""
        path = self.folder / name
        path.write_text(RECORD.format(name=name, log=self.log, body=body))
        path.chmod(0o755)

    def environment(self, variables: Mapping[str, str]) -> dict[str, str]:
        return {**os.environ, **variables, "PATH": f"{self.folder}:{os.environ['PATH']}"}

    def call(self, script: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess:
        """A script of launch/, to its end."""
        return subprocess.run(
            [LAUNCH / script, *map(str, arguments)],
            cwd=ROOT,
            env=self.environment(variables),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def calls(self) -> list[list[str]]:
        """Name and arguments of each call so far."""
        return [line.split("\t") for line in self.log.read_text().splitlines()] if self.log.exists() else []
