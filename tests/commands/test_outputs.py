"""No command writes its output over the files of a run."""

import pytest

from convs2s_jax.commands import convs2s
from tests import tiny
from tests.processes import called

OUTPUTS = {
    "attention": ("attention", "--workdir=none", "--input=none", "--output"),
    "export as programs": ("export", "--workdir=none", "--output"),
    "export for fairseq": ("export", "--workdir=none", "--output"),
    "report": ("report", "--workdir=none", "--output"),
    "scale check": ("scale", "check", "--config={config}", "--json"),
    "scale plan": ("scale", "plan", "--config={config}", "--topology=cpu:1", "--json"),
    "scale sweep": ("scale", "sweep", "--config={config}", "--topologies=cpu:1", "--tokens=64", "--output"),
    "shortlist": ("shortlist", "--workdir=none", "--output"),
}


@pytest.mark.parametrize("name", OUTPUTS)
def test_an_output_is_no_file_of_a_run(name, tmp_path):
    """The refusal comes before anything is read or written."""
    run = tmp_path / "run"
    (run / "checkpoints").mkdir(parents=True)
    (run / "config.json").write_text("{}")
    config = tiny.config_file(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    command, *flags, flag = [part.format(config=config) for part in OUTPUTS[name]]
    output = run / "vocab" / ("model.pt" if name == "export for fairseq" else "new")
    ended = called(convs2s.COMMANDS[command].run, f"convs2s {command}", *flags, f"{flag}={output}")
    assert ended.returncode == 2
    assert f"{flag}={output} belongs to the run in {run}: choose another path" in ended.stderr
    assert sorted(tmp_path.rglob("*")) == before
