"""What README, docs and the heads of configs/ tell to type: each configuration they name is there and takes it."""

import re
import shlex
from pathlib import Path

import pytest

from convs2s_jax.core import presets
from convs2s_jax.core.command_line import read_config, split_overrides
from convs2s_jax.core.config import build
from convs2s_jax.training.run.config import Config
from tests import tiny

PAGES = [tiny.ROOT / "README.md", tiny.ROOT / "launch" / "README.md", *sorted((tiny.ROOT / "docs").rglob("*.md"))]
HEADS = sorted((tiny.ROOT / "configs").glob("*.py"))
FLAG = r"""--[\w.]+(?:=(?:"[^"]*"|'[^']*'|[^\s`#"']+))?"""
COMMAND = re.compile(
    rf"(?:python train\.py|convs2s-train)\s+--config=(configs/\S+\.py|\w+(?=\s))((?:(?:\s|\\)+{FLAG})*)"
)


def commands(path: Path) -> list[tuple[str, list[str]]]:
    """Configuration (path or name) and other arguments of each training command in a file."""
    found = COMMAND.findall(path.read_text(encoding="utf-8"))
    return [(config, shlex.split(flags.replace("\\", " "))) for config, flags in found]


EXAMPLES = [(page.name, *command) for page in [*PAGES, *HEADS] for command in commands(page)]


@pytest.mark.parametrize(("page", "config", "arguments"), EXAMPLES, ids=lambda x: x if isinstance(x, str) else "")
def test_each_command_builds_a_configuration(page, config, arguments):
    rest, overrides = split_overrides(arguments)
    assert any(argument.startswith("--workdir=") for argument in rest)
    build(Config, read_config(str(presets.find(Path(config).stem)), overrides))


@pytest.mark.parametrize("path", HEADS, ids=lambda path: path.stem)
def test_a_head_begins_with_its_command_and_its_overrides_are_fields(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f'"""python train.py --config=configs/{path.name} ')
    for flag in re.findall(FLAG, text.split('"""')[1]):
        if flag.startswith("--config.") and "=" in flag:
            [argument] = shlex.split(flag.rstrip(".,:;)"))
            build(Config, read_config(str(path), split_overrides([argument])[1]))


def test_all_kinds_of_pages_have_commands():
    assert {"README.md", "distributed.md", "models.md"} <= {page for page, *_ in EXAMPLES}
    assert len(EXAMPLES) > len(HEADS)
