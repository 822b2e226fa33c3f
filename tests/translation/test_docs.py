"""The library's examples in docs/decoding.md and README.md run."""

import re

import pytest

from tests import tiny

DOCS = (tiny.ROOT / "docs" / "decoding.md").read_text(encoding="utf-8")


@pytest.mark.drill
def test_the_librarys_example_runs(trained, capsys):
    [code] = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
    exec(compile(code.replace("runs/demo", str(trained)), "docs/decoding.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3
    assert printed[0].startswith("5 kilowatts 5")


def test_text_in_and_text_out_of_readme_run(trained, translator, capsys):
    code, _ = re.findall(r"```python\n(.*?)```", (tiny.ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    exec(compile(code.replace("runs/demo", str(trained)), "README.md", "exec"), {})
    assert capsys.readouterr().out == f"{translator.translate(['April 4, 1989'])[0].best.text}\n"
