"""A wheel of the package in an empty environment: every command runs from another folder, configurations included."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests import tiny

SOURCES = ["convs2s_jax", "configs", "setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE"]


def run(*command, folder, text=""):
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    options = {"capture_output": True, "text": True, "timeout": 300, "check": False}
    ended = subprocess.run([*map(str, command)], cwd=folder, env=variables, input=text, **options)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:  # a copy, for building leaves files in the tree
        copy = shutil.copytree if (tiny.ROOT / name).is_dir() else shutil.copy
        copy(tiny.ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    run(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, source, folder=folder)
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def binaries(wheel, tmp_path_factory):
    """The commands of an environment that holds the wheel, and sees what it depends on in this one."""
    folder = tmp_path_factory.mktemp("environment")
    run(sys.executable, "-m", "venv", "--without-pip", folder, folder=folder)
    python = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    run(*pip, "install", "--no-deps", "--no-index", wheel, folder=folder)
    [site] = folder.glob("lib/python*/site-packages")
    others = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (site / "dependencies.pth").write_text("".join(f"{path}\n" for path in others))
    where = run(python, "-c", "import convs2s_jax; print(convs2s_jax.__file__)", folder=folder)
    assert Path(where.strip()).is_relative_to(site)
    return folder / "bin"


@pytest.mark.drill
def test_a_wheel_holds_the_package_and_the_configurations_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"convs2s_jax"}
    packed = {name for name in names if name.startswith("convs2s_jax/configs/")}
    assert packed == {f"convs2s_jax/configs/{path.name}" for path in (tiny.ROOT / "configs").glob("*.py")}
    modules = {str(path.relative_to(tiny.ROOT)) for path in (tiny.ROOT / "convs2s_jax").rglob("*.py")}
    assert modules == {name for name in names if name.endswith(".py")} - packed
    assert "convs2s_jax/py.typed" in names


@pytest.mark.drill
def test_an_installed_wheel_trains_and_decodes_from_another_folder(binaries, tmp_path):
    names = [line.split()[0] for line in run(binaries / "convs2s", "config", folder=tmp_path).splitlines()]
    assert names == sorted(path.stem for path in (tiny.ROOT / "configs").glob("*.py"))
    listed = run(binaries / "convs2s", folder=tmp_path)
    for command in ("train", "decode", "import", "export", "config"):
        assert f"  {command} " in listed
        assert f"convs2s {command} " in run(binaries / "convs2s", command, "--help", folder=tmp_path)
    small = ["--config.data.cldr.train=300", "--config.data.cldr.valid=12", "--config.data.cldr.test=8"]
    small += ["--config.model.encoder.layers=[(8, 3)]", "--config.model.decoder.layers=[(8, 3)]"]
    small += ["--config.model.decoder.out_dim=8", "--config.model.embedding_dim=8", "--config.data.batch.shapes=1"]
    small += ["--config.data.vocabulary.src_size=150", "--config.data.vocabulary.tgt_size=150"]
    small += ["--config.training.max_steps=2", "--config.training.validate_bleu=False", "--config.mesh.data=1"]
    run(binaries / "convs2s-train", "--config=cldr_en_de", "--workdir=run", *small, folder=tmp_path)
    assert json.loads((tmp_path / "run" / "config.json").read_text())["training"]["max_steps"] == 2
    for command in (["convs2s-decode"], ["convs2s", "decode"]):
        decode = [binaries / command[0], *command[1:], "--workdir=run", "--beam_size=1"]
        assert run(*decode, folder=tmp_path, text="5 kilowatts\n\n").count("\n") == 2
