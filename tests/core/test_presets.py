"""`--config` finds the configurations of the package by name, and suggests names for one that does not exist."""

import re

import pytest

from convs2s_jax.core import presets
from convs2s_jax.core.errors import UserError


def test_a_name_may_end_in_py_unless_there_is_such_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert presets.find("slicenet.py") == presets.find("slicenet") == presets.folder() / "slicenet.py"
    (tmp_path / "slicenet.py").touch()
    assert presets.find("slicenet.py").resolve() == tmp_path / "slicenet.py"
    with pytest.raises(UserError, match=r"^--config=slicenet\.py\.py: no such file"):
        presets.find("slicenet.py.py")


@pytest.mark.parametrize(
    ("given", "suggestion"),
    [
        ("cldr", "did you mean --config=classify_cldr, cldr_en_de or lm_cldr?"),
        ("KFTT", "did you mean --config=kftt_ja_en, kftt_ja_en_large or kftt_ja_en_lightconv?"),
        ("configs/iwslt14.py", "did you mean --config=iwslt14_de_en?"),
        ("multi30k_de_n", "did you mean --config=multi30k_de_en?"),
        ("qqqq", f"the configurations are in {presets.folder()}"),
        ("", f"the configurations are in {presets.folder()}"),
    ],
)
def test_suggested_are_all_names_that_contain_the_given_one_or_else_the_closest(
    given, suggestion, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"of that name exists; {re.escape(suggestion)}$"):
        presets.find(given)
