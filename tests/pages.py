"""Blocks of code of the documentation, and the pages whose blocks are run as they stand with less of everything."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from tests.processes import free_port
from tests.tiny import ROOT

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LIMIT = 1200
"""Seconds that a page's commands may take on a busy machine."""
RUN = "sh"
"""Language of blocks that `make drills` runs."""
ELSEWHERE = ("pip install", "gcloud", "docker", "kubectl", "sbatch", "launch/jobset.sh tpu create", "--topology=v5e")
"""What blocks of no language need: an installation, a cloud, a cluster, the compiler of TPUs."""

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
SHOWS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "docs/tutorial.md": ("continuing at step", '{"translations":', "looks at"),
        "docs/how-to/classifier.md": ("macro_f1", '"labels":'),
        "docs/how-to/big-corpus.md": ("continuing at step",),
        "docs/how-to/pod.md": ("all-gather over fsdp", "kind: JobSet"),
    }
)
"""What a page's commands print, among other things."""


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


def script(page: Path) -> str:
    """The blocks of a page that are run, as one shell script."""
    return "\n".join(block.text for block in blocks(page) if block.language == RUN)


def run(page: Path, folder: Path) -> subprocess.CompletedProcess:
    """Run a page's script in a folder, with less of everything, on this checkout's package; it ends what it started."""
    text = shortened(page)
    for port in ("8080", "12355"):
        text = text.replace(port, str(free_port()))
    for name in ("launch", "configs", "train.py"):
        (folder / name).symlink_to(ROOT / name)
    head = "set -eo pipefail\ntrap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n"
    known = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{known['PATH']}"
    known |= {"PYTHONPATH": str(ROOT), "PATH": path, "JAX_PLATFORMS": "cpu"}
    return subprocess.run(
        ["bash", "-c", head + text], cwd=folder, env=known, capture_output=True, text=True, timeout=LIMIT, check=False
    )


def shortened(page: Path) -> str:
    """A page's script with less of everything.

    Raises:
      ValueError: the page has changed, so that something would not be shortened.
    """
    text = script(page)
    for long, short in SHORTER[str(page.relative_to(ROOT))].items():
        if long not in text:
            raise ValueError(f"{page} has no '{long}' any more: SHORTER of tests/pages.py makes it '{short}'")
        text = text.replace(long, short)
    return text


if __name__ == "__main__":
    print((shortened if "--shortened" in sys.argv else script)(ROOT / sys.argv[1]), end="")  # noqa: T201
