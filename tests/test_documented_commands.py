"""What README, docs and the heads of configs/ tell to type: each configuration they name is there and takes it.

Flags of all other commands are flags that their command knows. As drills, the commands of the tutorials run, with less
of everything.
"""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from convs2s_jax.commands.convs2s import COMMANDS
from convs2s_jax.core import command_line
from convs2s_jax.core.command_line import parse, read_config, split_overrides
from convs2s_jax.core.config import build
from convs2s_jax.training.run.config import Config
from tests import pages, tiny

HEADS = sorted((tiny.ROOT / "configs").glob("*.py"))
FLAG = r"""--[\w.]+(?:=(?:"[^"]*"|'[^']*'|[^\s`#"']+))?"""
COMMAND = re.compile(
    rf"(?:python train\.py|convs2s[ -]train)\s+--config=(configs/\S+\.py|(?!NAME)\w+(?=\s))((?:(?:\s|\\)+{FLAG})*)"
)


def commands(path: Path) -> list[tuple[str, list[str]]]:
    """Configuration (path or name) and other arguments of each training command in a file."""
    found = COMMAND.findall(path.read_text(encoding="utf-8"))
    return [(config, shlex.split(flags.replace("\\", " "))) for config, flags in found]


EXAMPLES = [(page.name, *command) for page in [*pages.PAGES, *HEADS] for command in commands(page)]


@pytest.mark.parametrize(("page", "config", "arguments"), EXAMPLES, ids=lambda x: x if isinstance(x, str) else "")
def test_each_command_builds_a_configuration(page, config, arguments):
    rest, overrides = split_overrides(arguments)
    assert any(argument.startswith("--workdir=") for argument in rest)
    build(Config, read_config(str(command_line.find_config(Path(config).stem)), overrides))


@pytest.mark.parametrize("path", HEADS, ids=lambda path: path.stem)
def test_a_head_begins_with_its_command_and_its_overrides_are_fields(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f'"""convs2s train --config={path.stem} ')
    for flag in re.findall(FLAG, text.split('"""')[1]):
        if flag.startswith("--config.") and "=" in flag:
            [argument] = shlex.split(flag.rstrip(".,:;)"))
            build(Config, read_config(str(path), split_overrides([argument])[1]))


PROGRAM = re.compile(
    rf"(?:convs2s[ ]|(?<!\w)convs2s-(?=train|decode)|python[ ](?=(?:train|decode)\.py))"
    rf"((?:scale|data)[ ]\w+|\w+)(?:\.py)?((?:(?:[ ]|\\\n[ ]*){FLAG})+)"
)


def flags_in(page: Path) -> list[tuple[str, list[str]]]:
    """Each command of a page with the flags that follow it."""
    found = PROGRAM.findall(page.read_text(encoding="utf-8"))
    return [(name, shlex.split(flags.replace("\\\n", " "))) for name, flags in found]


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.stem)
def test_flags_of_each_command_are_known(page):
    """Flags with their values, as the command would read them; a value such as N or $i stands for one."""
    for name, given in flags_in(page):
        if name.isupper():
            continue
        assert name in COMMANDS, f"convs2s {name}"
        values = [flag for flag in given if not re.search(r"^--help|=(?:\$.*|[A-Z_]+|\.\.\.)$", flag)]
        command = COMMANDS[name].command
        valued = {f"--{field.name}" for group in command.groups for field in group.fields if field.kind is not bool}
        parse(command, [flag for flag in values if flag not in valued])  # prose names flags without a value


def test_each_block_is_of_commands_or_says_what_else_it_is():
    found = [(page.name, language) for page in pages.PAGES for language, _ in pages.blocks(page)]
    assert [one for one in found if one[1] not in (*pages.COMMANDS, *pages.OTHERS)] == []


@pytest.mark.parametrize("name", pages.SHORTER)
def test_commands_that_are_run_are_scripts_and_are_shortened(name):
    done = subprocess.run(["bash", "-n"], input=pages.shortened(name), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.drill
@pytest.mark.parametrize("name", pages.SHORTER)
def test_every_command_of_a_tutorial_runs(name, tmp_path):
    done = pages.run(name, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
