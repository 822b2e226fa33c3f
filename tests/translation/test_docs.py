"""docs/decoding.md: every flag is there, every example can be parsed, the library's example runs."""

import re
import shlex

import pytest
from absl import flags

from tests import tiny

DOCS = (tiny.ROOT / "docs" / "decoding.md").read_text(encoding="utf-8")
EXAMPLES = [line.partition("python decode.py ")[2] for line in DOCS.splitlines() if "python decode.py --w" in line]


@pytest.fixture(scope="module")
def program():
    import decode

    yield decode
    flags.FLAGS.unparse_flags()


def test_every_flag_is_described_and_listed(program):
    readme = (tiny.ROOT / "README.md").read_text(encoding="utf-8")
    names = [flag.name for flag in flags.FLAGS.get_flags_for_module(program)]
    assert len(names) > 35
    for name in names:
        assert re.search(rf"--{name}\b", DOCS), name
        assert re.search(rf"--{name}\b", readme), name


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_example_is_a_command(program, example):
    flags.FLAGS.unparse_flags()
    arguments = re.sub(r"#.*|\|.*|\[.*?\]", "", example)
    assert flags.FLAGS(["decode.py", *shlex.split(arguments)]) == ["decode.py"]
    assert program.options().workdir


def test_the_librarys_example_runs(trained, capsys):
    [code] = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
    exec(compile(code.replace("runs/demo", str(trained)).replace("Etwa", "5"), "docs/decoding.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3
    assert printed[0].startswith("5 kilowatts 5")
