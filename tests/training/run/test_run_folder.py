"""A workdir belongs to one configuration, and says so when another comes."""

import dataclasses
import json

import pytest

from convs2s_jax.core.config import build, override
from convs2s_jax.core.errors import UserError
from convs2s_jax.data.config import MixturePart
from convs2s_jax.training.run import outputs, run_folder
from convs2s_jax.training.run.config import Config


def config(**changes):
    values = {"data": {"dir": "texts", "src": "de", "tgt": "en"}}
    for path, text in changes.items():
        values = override(values, path.replace("__", "."), text)
    return build(Config, values)


def claim(workdir, cfg):
    """As a start does it: check, then write; the first one finds no checkpoint."""
    if (workdir / "config.json").exists():
        run_folder.check_config(workdir, cfg)
    workdir.mkdir(parents=True, exist_ok=True)
    run_folder.write_config(workdir, cfg)


@pytest.fixture(autouse=True)
def begun(tmp_path):
    """A checkpoint: from then on the configuration is fixed."""
    (tmp_path / "checkpoints" / "1").mkdir(parents=True)


def test_before_the_first_checkpoint_the_configuration_may_change(tmp_path):
    workdir = tmp_path / "fresh"
    claim(workdir, config(model__dropout="0.3"))
    (workdir / "checkpoints" / "5.orbax-checkpoint-tmp").mkdir(parents=True)  # never finished
    claim(workdir, config(model__dropout="0.4"))
    assert run_folder.load_config(workdir).model.dropout == 0.4


def test_a_new_workdir_gets_the_whole_configuration(tmp_path):
    workdir = tmp_path / "runs" / "a"
    cfg = config(model__dropout="0.3")
    claim(workdir, cfg)
    assert run_folder.load_config(workdir) == cfg
    stored = json.loads((workdir / "config.json").read_text(encoding="utf-8"))
    assert set(stored) == {field.name for field in dataclasses.fields(Config)} | {"checksum"}
    assert stored["training"]["clip"] == 0.1  # defaults too: they may be others in a later version
    assert [path.name for path in workdir.iterdir()] == ["config.json"]


def test_a_configuration_that_checkpoints_need_is_missed(tmp_path):
    """Its place was taken by that of the command line, whatever the run had."""
    with pytest.raises(UserError, match=r"config\.json is missing, but checkpoints here need it: restore it, or use"):
        run_folder.check_config(tmp_path, config())
    (tmp_path / "config.json").symlink_to(tmp_path / "config.json")
    with pytest.raises(UserError, match=r"config\.json cannot be read: Too many levels of symbolic links; restore it"):
        run_folder.check_config(tmp_path, config())


def test_differences_are_listed_by_field_with_both_values(tmp_path):
    claim(tmp_path, config(model__dropout="0.3", training__clip="0.5"))
    before = (tmp_path / "config.json").read_bytes()
    with pytest.raises(UserError) as error:
        claim(tmp_path, config(seed="7", training__max_steps="5"))
    assert str(error.value) == (
        f"--workdir={tmp_path} contains a run with another configuration: model.dropout is 0.3 there and "
        f"{config().model.dropout!r} here; seed is 1 there and 7 here; training.clip is 0.5 there and 0.1 here. "
        "Use another workdir, or the settings of that run"
    )
    assert (tmp_path / "config.json").read_bytes() == before


def test_bounds_reports_and_places_may_change_and_are_stored(tmp_path):
    claim(tmp_path, config())
    free = {"model__execution__remat": "block", "model__matmul_precision": "highest", "data__dir": "elsewhere"}
    changed = config(**free, training__max_steps="9", training__bleu_tokenize="none", search__beam_size="9")
    claim(tmp_path, changed)
    assert run_folder.load_config(tmp_path) == changed


@pytest.mark.parametrize("name", [*run_folder.FREE, *run_folder.FIXED])
def test_every_listed_field_exists(name):
    record = config()
    for part in name.split("."):
        assert part in {field.name for field in dataclasses.fields(record)}
        record = MixturePart(files=[("", "x")]) if part == "mixture" else getattr(record, part)


@pytest.mark.parametrize("text", ["{", ""])
def test_what_is_not_json_is_refused_and_kept(tmp_path, text):
    path = tmp_path / "config.json"
    path.write_text(text, encoding="utf-8")
    for call in (lambda: run_folder.load_config(tmp_path), lambda: claim(tmp_path, config())):
        with pytest.raises(UserError, match=r"config\.json is not JSON .*; restore it, or train again in another"):
            call()
    assert path.read_text(encoding="utf-8") == text


def test_a_field_of_another_version_is_named(tmp_path):
    claim(tmp_path, config())
    path = tmp_path / "config.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    del values["checksum"]
    path.write_text(json.dumps({**values, "sed": 1}), encoding="utf-8")
    way_out = f"if an earlier version wrote {path}, commit f02697ce reads it"
    with pytest.raises(UserError, match=rf"config\.sed: there is no field 'sed'; did you mean 'seed'\?; {way_out}"):
        run_folder.load_config(tmp_path)


def test_checkpoints_on_another_disk_are_of_the_run(tmp_path):
    run, disk = tmp_path / "run", tmp_path / "disk"
    disk.mkdir()
    run.mkdir()
    (run / "config.json").write_text("{}")
    (run / "checkpoints").symlink_to(disk)
    with pytest.raises(UserError, match=f"belongs to the run in {run}: choose another path$"):
        outputs.check_outside_runs(f"{run}/checkpoints/3", "--output")
