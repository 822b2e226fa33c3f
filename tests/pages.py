"""Blocks of code of the documentation, and how commands of the tutorials are run with less of everything."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from tests.processes import environment, free_port
from tests.tiny import ROOT

PAGES = tuple(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "launch/README.md"))
PAGES += (ROOT / "benchmarks" / "peer.md", *sorted((ROOT / "docs").rglob("*.md")))
FENCE = re.compile(r"^```([\w-]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = ("", "sh")
"""Languages of blocks that hold commands; what they print is marked as text."""
OTHERS = ("text", "python", "json", "math")
LIMIT = 1200
"""Seconds that a page's commands may take on a busy machine."""
CLUSTERS = (
    "launch/xpk.sh",
    "jobset.sh tpu create",
    "jobset.sh tpu log",
    "kubectl",
    "gcloud",
    "srun",
    "sbatch",
    "ssh node",
)
NOT_RUN = (*CLUSTERS, "pip install", "=gs://", "docker", "--topology=v5e")
"""Parts of commands that need a cluster, a network, a bucket or the compiler of TPUs."""

SMALL = {"[(128, 3)] * 4": "[(16, 3)]", "[(128, 3)] * 3": "[(16, 3)]", '"embedding_dim": 128': '"embedding_dim": 16'}
BRIEF = {'"training": {': '"search": {"beam_size": 1, "max_length_a": 0.0, "max_length_b": 8},\n        "training": {'}
"""Models that have learned nothing yet translate without an end."""
TINY = " --config.model.embedding_dim=16" + "".join(
    f" --config.model.{side}.layers='[(16, 3)]'" for side in ("encoder", "decoder")
)

SHORTER: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "docs/tutorial.md": {
            "train=30_000, valid=500, test=500": "train=2_000, valid=50, test=50",
            "src_size=1500": "src_size=300",
            "tgt_size=1500": "tgt_size=300",
            "max_epochs=2": f"max_epochs=2 --config.data.batch.shapes=2{TINY}",
            "max_epochs=4": f"max_epochs=3 --config.data.batch.shapes=2{TINY}",
            "convs2s serve": "convs2s serve --beam_size=1 --max_tokens=16 --batch_size=8",
            "--max_tokens=32": "--max_tokens=16 --beam_size=1",
        },
        "docs/how-to/classifier.md": {
            "train=6_000": "train=1_000",
            "max_epochs=5": "max_epochs=2 --config.data.batch.shapes=2",
        },
        "docs/how-to/big-corpus.md": {
            "train=60_000, valid=500, test=500": "train=4_000, valid=20, test=20",
            **BRIEF,
            "30_000": "2_000",
            '"src_size": 2000, "tgt_size": 2000': '"src_size": 300, "tgt_size": 300',
            '"shapes": 8': '"shapes": 2',
            '"max_steps": 200': '"max_steps": 6',
            '"validate_every": 100': '"validate_every": 3',
            "max_steps=250": "max_steps=8",
            "max_steps=50": "max_steps=3",
            **SMALL,
        },
        "docs/how-to/back-translation.md": {
            "train=15_000, valid=500, test=500": "train=600, valid=20, test=20",
            **BRIEF,
            "[:3000]": "[:500]",
            "[3000:]": "[500:]",
            '"src_size": 1000, "tgt_size": 1000': '"src_size": 200, "tgt_size": 200',
            '"shapes": 6': '"shapes": 2',
            '"max_steps": 300': '"max_steps": 5',
            **SMALL,
        },
        "docs/how-to/pod.md": {
            "--config=cldr_en_de": "--config=cldr_en_de --config.data.vocabulary.src_size=300"
            f" --config.data.vocabulary.tgt_size=300 --config.data.batch.shapes=2{TINY}",
            "train=4000": "train=1000 --config.data.cldr.valid=50 --config.data.cldr.test=50",
            "max_steps=20": "max_steps=4",
        },
    }
)
"""What is run with less of everything, to take minutes: page -> text of its blocks -> what replaces it."""


def blocks(page: Path) -> list[tuple[str, str]]:
    """(language, text) of all fenced blocks of a page, in order."""
    return FENCE.findall(page.read_text(encoding="utf-8"))


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


def shortened(name: str) -> str:
    """The commands of a page that are run, as one shell script with less of everything.

    Raises:
      ValueError: the page has changed, so that something would not be shortened.
    """
    commands = [one for language, text in blocks(ROOT / name) if language in COMMANDS for one in statements(text)]
    script = "".join(one for one in commands if not any(part in one for part in NOT_RUN))
    for long, short in SHORTER[name].items():
        if long not in script:
            raise ValueError(f"{name} has no '{long}' any more, which SHORTER of tests/pages.py makes '{short}'")
        script = script.replace(long, short)
    return script


def run(name: str, folder: Path) -> subprocess.CompletedProcess:
    """Run a page's commands in an empty folder on this checkout's package; what they started ends with them."""
    text = shortened(name)
    for port in ("8080", "12355"):
        text = text.replace(port, str(free_port()))
    for link in ("launch", "configs", "benchmarks", "examples", "train.py", "decode.py"):
        (folder / link).symlink_to(ROOT / link)
    known = environment(1)
    known["XLA_FLAGS"] = re.sub(r"--xla_force_host_platform_device_count=\d+", "", known["XLA_FLAGS"])
    path = f"{Path(sys.executable).parent}{os.pathsep}{known['PATH']}"
    known |= {"PYTHONPATH": str(ROOT), "PATH": path, "JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(folder / "cache")}
    return subprocess.run(
        ["bash", "-xc", f"set -eo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n{text}"],
        cwd=folder,
        env=known,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
