"""What README, docs and the heads of configs/ tell to type: each configuration they name is there and takes it.

Flags of all other commands are flags that their command knows. As drills, all commands of each page run, with less of
everything.
"""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from convs2s_jax.commands import reference
from convs2s_jax.core import command_line
from convs2s_jax.core.command_line import parse, read_config, split_overrides
from convs2s_jax.core.config import build
from convs2s_jax.training.run.config import Config
from tests import pages, shorter, tiny

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


def test_all_kinds_of_pages_have_commands():
    assert {"README.md", "distributed.md", "models.md"} <= {page for page, *_ in EXAMPLES}
    assert len(EXAMPLES) > len(HEADS)


PROGRAM = re.compile(
    rf"(?:convs2s[ ]|(?<!\w)convs2s-(?=train|decode)|python[ ](?=(?:train|decode)\.py))"
    rf"(scale[ ]\w+|\w+)(?:\.py)?((?:(?:[ ]|\\\n[ ]*){FLAG})+)"
)
KNOWN = {name: command for name, _, command in reference.commands()}


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
        assert name in KNOWN, f"convs2s {name}"
        values = [flag for flag in given if not re.search(r"^--help|=(?:\$.*|[A-Z_]+|\.\.\.)$", flag)]
        fairseq = name == "export" and any(flag.endswith(".pt") for flag in given)
        command = KNOWN["export --output=FILE.pt" if fairseq else name]
        valued = {f"--{field.name}" for group in command.groups for field in group.fields if field.kind is not bool}
        parse(command, [flag for flag in values if flag not in valued])  # prose names flags without a value


def test_commands_of_all_kinds_are_found():
    found = {name for page in pages.PAGES for name, _ in flags_in(page)}
    assert {"train", "decode", "serve", "export", "shortlist", "import", "scale plan", "config"} <= found


def test_each_block_is_of_commands_or_says_what_else_it_is():
    found = [(pages.name_of(page), block.language) for page in pages.PAGES for block in pages.blocks(page)]
    known = (*pages.COMMANDS, *pages.OTHERS)
    assert [one for one in found if one[1] not in known] == []


def test_what_is_not_run_is_on_the_pages_and_has_a_reason():
    every = [command for page in pages.PAGES for command in pages.commands(page)]
    unused = [part for part in shorter.NOT_RUN if not any(part in command for command in every)]
    assert unused == [], "no page has such a command any more"
    assert all(shorter.NOT_RUN.values())
    assert len([command for command in every if pages.reason(command) is None]) > 100


def test_commands_that_are_run_are_scripts_and_are_shortened():
    whole = "".join(f"{pages.shortened(pages.ROOT / name)}\n" for name in pages.with_commands())
    done = subprocess.run(["bash", "-n"], input=whole, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert {*shorter.SHORTER, *shorter.SHOWS, *shorter.BEFORE, *shorter.DEVICES} <= {*pages.with_commands()}


def test_lines_that_belong_together_are_one_command():
    text = "a \\\n  b\nc |\n  d\nfor i in 1; do\n  c\ndone\nwait\npython - <<'END'\nfor x in y:\n    d\nEND\ne\n"
    found = [
        "a \\\n  b\n",
        "c |\n  d\n",
        "for i in 1; do\n  c\ndone\n",
        "wait\n",
        "python - <<'END'\nfor x in y:\n    d\nEND\n",
        "e\n",
    ]
    assert list(pages.statements(text)) == found
    with pytest.raises(ValueError, match="has no end"):
        list(pages.statements("for i in 1; do\n"))


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    """What the pages of the reference take for granted."""
    folder = tmp_path_factory.mktemp("prepared")
    pages.prepare(folder)
    return folder


@pytest.mark.drill
@pytest.mark.parametrize("name", pages.with_commands())
def test_every_command_of_a_page_runs(name, prepared, tmp_path):
    done = pages.run(pages.ROOT / name, tmp_path, prepared)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for wanted in shorter.SHOWS.get(name, ()):
        assert wanted in done.stdout + done.stderr
