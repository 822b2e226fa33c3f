"""Command lines: what is an override, and what a user is told of a configuration file."""

import json
import re
import sys

import pytest

from convs2s_jax.core import checksums, command_line, stores
from convs2s_jax.core.command_line import read_config, split_overrides
from convs2s_jax.core.errors import UserError
from tests.stores import bucket  # noqa: F401  (a fixture)


def test_overrides_are_told_from_other_arguments_and_keep_their_order():
    arguments = ["train.py", "--config=a.py", "--config.model.dropout=0.3", "--workdir=x", "--config.seed", "7"]
    rest, overrides = split_overrides([*arguments, "--config.model.dropout=0.4"])
    assert rest == ["train.py", "--config=a.py", "--workdir=x"]
    assert overrides == [("model.dropout", "0.3"), ("seed", "7"), ("model.dropout", "0.4")]
    _, overrides = split_overrides(["--config.data.dir=a=b", "--config.data.cache_dir="])
    assert overrides == [("data.dir", "a=b"), ("data.cache_dir", "")]


@pytest.mark.parametrize(
    "arguments", [["--config.seed"], ["--config.seed", "--workdir=x"], ["--config.=3"], ["--config."]]
)
def test_an_override_without_value_or_field_is_refused(arguments):
    with pytest.raises(UserError, match=r"^--config\.(seed|=3|) has no value: use --config\.path\.to\.field=value$"):
        split_overrides(arguments)


@pytest.fixture
def write(tmp_path):
    def write(text):
        (tmp_path / "my.py").write_text(text)
        return str(tmp_path / "my.py")

    return write


def test_the_last_override_of_a_field_counts(write):
    path = write("def get_config():\n    return {'seed': 1, 'model': {'dropout': 0.1}}\n")
    assert read_config(path, []) == {"seed": 1, "model": {"dropout": 0.1}}
    overrides = [("seed", "2"), ("model.dtype", "bfloat16"), ("seed", "3")]
    assert read_config(path, overrides) == {"seed": 3, "model": {"dropout": 0.1, "dtype": "bfloat16"}}


def test_the_config_json_of_a_run_is_a_configuration(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(checksums.seal({"seed": 1, "data": {"dir": None}, "mesh": [True]})))
    assert read_config(str(path), [("seed", "2")]) == {"seed": 2, "data": {"dir": None}, "mesh": [True]}
    for text in ("[1]", "{", ""):
        path.write_text(text)
        with pytest.raises(
            UserError, match=r"config\.json is not the config\.json of a run: use one, or a Python file"
        ):
            read_config(str(path), [])


def test_a_configuration_may_be_in_a_store(bucket):  # noqa: F811
    stores.write("gs://bucket/a/config.json", json.dumps(checksums.seal({"seed": 1})).encode())
    stores.write("gs://bucket/a/my.py", b"def get_config():\n    return {'seed': 2}\n")
    stores.write("gs://bucket/a/bad.py", b"def get_config():\n    return 1 / 0\n")
    stores.write("gs://bucket/a/bad.json", b"{")
    assert read_config("gs://bucket/a/config.json", [("steps", "3")]) == {"seed": 1, "steps": 3}
    assert read_config("gs://bucket/a/my.py", []) == {"seed": 2}
    assert command_line.config_text("gs://bucket/a/my.py").startswith("def get_config")
    for name, message in {
        "bad.py": r"gs://bucket/a/bad\.py, line 2: ZeroDivisionError: division by zero",
        "bad.json": r"gs://bucket/a/bad\.json is not the config\.json of a run: ",
        "none.py": r"--config=gs://bucket/a/none\.py: there is no such object",
    }.items():
        with pytest.raises(UserError, match=f"^{message}"):
            read_config(f"gs://bucket/a/{name}", [])


def test_a_missing_file_is_named(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"^--config=.*none\.py: no such file and no configuration of that name exists"):
        read_config(str(tmp_path / "none.py"), [])
    with pytest.raises(UserError, match=rf"^--config={tmp_path} is a folder; use a file, or the name of a conf"):
        read_config(str(tmp_path), [])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "multi30k_de_en").mkdir()
    assert "model" in read_config("multi30k_de_en", [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("config = {}\n", r" does not define get_config\(\), which returns the values$"),
        ("def get_config():\n    return 1 / 0\n", r", line 2: ZeroDivisionError: division by zero"),
        ("def get_config(:\n", r", line 1: SyntaxError: invalid syntax$"),
        ("import sys\n\nsys.exit(7)\n", r", line 3: SystemExit: 7$"),
        ("def get_config(name):\n    return {}\n", r": TypeError: .*missing 1 required positional argument"),
    ],
)
def test_a_mistake_inside_the_file_is_told_with_its_kind(text, message, write):
    with pytest.raises(UserError, match=rf"my\.py{message}"):
        read_config(write(text), [])


def test_a_file_may_import_its_neighbours(write, tmp_path):
    path = write("from shared_settings import SEED\n\ndef get_config():\n    return {'seed': SEED}\n")
    (tmp_path / "shared_settings.py").write_text("SEED = 5\n")
    before = list(sys.path)
    assert read_config(path, []) == {"seed": 5}
    path = write("import other_settings\n")
    (tmp_path / "other_settings.py").write_text("\n\nSEED = = 5\n")
    with pytest.raises(UserError, match=rf"^{tmp_path}/other_settings.py, line 3: SyntaxError: invalid syntax$"):
        read_config(path, [])
    assert sys.path == before


@pytest.mark.parametrize(
    ("given", "suggestion"),
    [
        ("configs/iwslt14.py", "did you mean 'iwslt14_de_en'?"),
        ("multi30k_de_n", "did you mean 'multi30k_de_en'?"),
        ("qqqq", f"the configurations are in {command_line.configs_folder()}"),
        ("", f"the configurations are in {command_line.configs_folder()}"),
    ],
)
def test_the_closest_configuration_is_suggested(given, suggestion):
    with pytest.raises(UserError, match=f"of that name exists; {re.escape(suggestion)}$"):
        command_line.find_config(given)
