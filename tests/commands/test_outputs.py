"""What commands write besides workdirs never replaces the files of a run."""

import pytest

from convs2s_jax.commands.convs2s import COMMANDS
from tests import tiny
from tests.processes import called

OUTPUTS = {
    "export": ("export", "--workdir=none", "--output"),
    "export for fairseq": ("export", "--workdir=none", "--output"),
    "merge": ("merge", "--output"),
    "report": ("report", "--workdir=none", "--output"),
    "scale check": ("scale check", "--config={config}", "--json"),
    "scale plan": ("scale plan", "--config={config}", "--topology=cpu:1", "--json"),
    "shortlist": ("shortlist", "--workdir=none", "--output"),
}

ELSEWHERE = {"average": "tests/translation/test_averaging.py", "decode": "tests/translation/jobs/test_decoding.py"}
"""Commands that compare their output with their own run and corpus, and where that is tested."""


def content(folder):
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_every_command_with_an_output_is_among_them():
    found = {
        name
        for name, entry in COMMANDS.items()
        if {field.name for group in entry.command.groups for field in group.fields} & {"output", "json"}
    }
    assert found == {*OUTPUTS, *ELSEWHERE} - {"export for fairseq"}


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_is_no_file_of_a_run(name, tmp_path):
    """The refusal comes before anything is read or written."""
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.json").write_text("{}")
    config = tiny.config_file(tmp_path)
    before = content(tmp_path)
    command, *flags, flag = [part.format(config=config) for part in OUTPUTS[name]]
    output = run / "vocab" / ("model.pt" if name == "export for fairseq" else "new")
    ended = called(COMMANDS[command].run, f"convs2s {command}", *flags, f"{flag}={output}")
    assert ended.returncode == 2
    assert f"{flag}={output} belongs to the run in {run}: choose another path" in ended.stderr
    assert content(tmp_path) == before
