"""Addresses such as gs://bucket where a path belongs: refused by one sentence, before anything is written."""

from pathlib import Path

import pytest

from convs2s_jax.commands import decode
from convs2s_jax.commands.convs2s import COMMANDS
from convs2s_jax.core import command_line
from convs2s_jax.core.config import build
from convs2s_jax.core.errors import UserError
from convs2s_jax.core.places import check_place
from convs2s_jax.data.config import DataConfig
from tests.processes import called

ALL = {name: entry.command for name, entry in COMMANDS.items()}
TEXTS = {str: "", str | None: "", tuple[str, ...]: "here,", tuple[str, ...] | None: "here,"}
"""The types of flags that name files, and what stands before the address."""
FLAGS = [
    (name, field.name, before)
    for name, command in ALL.items()
    for group in command.groups
    for field in group.fields
    for kind, before in TEXTS.items()
    if field.kind == kind
]


@pytest.mark.parametrize(("name", "flag", "before"), FLAGS)
def test_no_flag_takes_an_address_that_is_not_supported(name, flag, before, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = [name, f"--{flag}={before}ftp://host/a"]
    found = called(lambda given: command_line.run(ALL[name], arguments=given), *arguments)
    assert found.returncode == 2
    assert f"--{flag} is ftp://host/a: ftp:// is not supported here; use a path" in found.stderr
    assert not list(tmp_path.iterdir())


def test_every_flag_that_names_a_file_was_tried():
    assert {("train", "workdir", ""), ("decode", "reference", "here,"), ("export", "output", "")} <= set(FLAGS)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("dir", {"dir": "ftp://b"}),
        ("cache_dir", {"cache_dir": "ftp://b"}),
        ("tfds_dir", {"tfds_dir": "s3://b"}),
        ("vocabulary.dir", {"vocabulary": {"dir": "ftp://b"}}),
        ("files.test", {"files": {"test": [["a", "ftp://b"]]}}),
    ],
)
def test_no_field_takes_an_address_that_is_not_supported(field, values):
    with pytest.raises(UserError, match=rf"^data\.{field}\b.* is \w+://b: \w+:// is not supported here"):
        build(DataConfig, {"tgt": "en", **values}, "data")


@pytest.mark.parametrize("place", ["gs://", "gs:///a", "GS://a/b", "s3:///"])
def test_an_address_in_a_store_has_a_bucket(place):
    with pytest.raises(UserError, match=r"^--workdir is \S+: use (gs|s3)://BUCKET/NAME$"):
        check_place("--workdir", place, stores=True)


@pytest.mark.parametrize("place", ["gs://a/.", "gs://a/x/..", "s3://a/../b", "s3://a/./b"])
def test_an_address_has_no_parts_of_dots(place):
    with pytest.raises(
        UserError, match=r"^--workdir is \S+: remove the parts \. and \.\., which object stores do not res"
    ):
        check_place("--workdir", place, stores=True)
    check_place("--workdir", "gs://a/..b/c.", stores=True)
    check_place("--workdir", "../a", stores=True)


def test_the_home_folder_stands_for_its_sign_in_flags(monkeypatch):
    """Shells do not replace it after --flag=."""
    monkeypatch.setenv("HOME", "/home/me")
    given = ["--workdir=~/a,~/b,c~/d", "--input=~/in", "--config.data.dir=~/text", "--output", "~/out"]
    values, overrides = command_line.parse(decode.COMMAND, given)
    assert (values["workdir"], values["input"]) == (("/home/me/a", "/home/me/b", "c~/d"), "/home/me/in")
    assert values["output"] == "/home/me/out"
    assert overrides == [("data.dir", "/home/me/text")]
    assert command_line.parse(decode.COMMAND, ["--output=~"])[0] == {"output": "/home/me"}


def test_an_address_is_not_a_path():
    for value in (Path("gs://a/b"), [Path("runs/a"), Path("s3://a/b")]):
        with pytest.raises(UserError, match=r"^--workdir is (gs|s3):/a/b: pass an address as a string"):
            check_place("--workdir", value, stores=True)
    check_place("--workdir", [Path("runs/gs:/a"), Path("/gs:/a")], stores=True)


@pytest.mark.parametrize(
    ("name", "arguments", "flag"),
    [
        ("train", ["--config=no", "--workdir=runs/a,b"], "--workdir=runs/a,b"),
        ("train", ["--config=no", "--workdir=gs://bucket/a,b"], "--workdir=gs://bucket/a,b"),
        ("average", ["--workdir=runs/a,b", "--output=runs/c,d"], "--output=runs/c,d"),
    ],
    ids=["train", "in a store", "average"],
)
def test_a_workdir_that_no_command_could_name_is_not_made(name, arguments, flag, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = called(lambda given: command_line.run(ALL[name], ["p", *given]), *arguments)
    assert result.returncode == 2
    assert f"p: {flag} contains a comma, at which decoding and other commands split lists of workdirs" in result.stderr
    assert not any(tmp_path.iterdir())
